"""The moving average of the weights and early stopping on several ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from tests.programs.tiny import VIT
from tests.warm import run_ranks
from zoo.data import open_dataset
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, train

SHORT = (
    "training.epochs=6",
    "schedule.name=constant",
    "schedule.warmup_epochs=0",
    "optimizer.lr=0.02",
    "training.batch_size=64",
    "training.log_every=1",
    "training.checkpoint_every=1",
    "training.device=cpu",
    *VIT,
    "training.channels_last=false",
    "training.ema={decay: 0.9, warmup: true}",
)
STOPPING = "training.early_stopping={validation_fraction: 0.3, metric: loss, every: 1, patience: 2}"
SAID = re.compile(r"^rank (\d) (\w+): (\w+) (\d+) (.+)$", re.MULTILINE)


def program(folder: Path, *overrides: str, ranks: int = 2) -> str:
    done = run_ranks("tests/programs/stopping.py", str(folder), *overrides, ranks=ranks)
    assert done.returncode == 0, done.stderr
    return done.stdout


def one_rank(folder: Path, *overrides: str) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    recipe = Recipe.load("cifar_resnet20.ce_digits_lt50", overrides)
    dataset = open_dataset(recipe.data, "train", None)
    run = RunFolder(folder)
    trained = train(build_objective(recipe, dataset), dataset, recipe, run, resume=False)
    return trained.objective.state_dict(), run.rows()


def test_two_ranks_stop_alike_with_the_same_weights_and_resume_to_them(tmp_path: Path) -> None:
    said = SAID.findall(program(tmp_path, *SHORT, STOPPING))
    assert sorted((rank, name) for rank, name, *_ in said) == [
        (rank, name) for rank in "01" for name in ("again", "whole")
    ]
    assert len({tuple(rest) for _, _, *rest in said}) == 1, said
    facts = json.loads(said[0][4])
    _, rows = one_rank(tmp_path / "one", *SHORT, STOPPING)
    values = [
        [row["validation_loss"] for row in found if "validation_loss" in row]
        for found in (rows, RunFolder(tmp_path / "a").rows())
    ]
    assert values[0][:2] == pytest.approx(values[1][:2], rel=1e-2)  # later steps multiply roundings
    assert facts["best_epoch"] == values[1].index(min(values[1])) + 1
    assert facts["stopped_at_epoch"] == len(values[1])
