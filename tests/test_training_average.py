"""The moving average of the weights: against timm's own, an independent loop, and every way a run can go."""

from __future__ import annotations

import copy
import signal
from pathlib import Path

import pytest
import torch
from timm.utils import ModelEmaV3
from torch import Tensor

from tests.test_training import StopAfter, assert_same_state, recipe, run
from zoo.data import Batch, open_dataset
from zoo.errors import Interrupted, TrainingError
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, train
from zoo.training.prepare import open_loader, place
from zoo.training.step import Stepper

CPU = torch.device("cpu")
EMA = "training.ema={decay: 0.8, warmup: false}"
WARM = "training.ema={decay: 0.8, warmup: true}"


def stepping(r: Recipe) -> tuple[Stepper, list[Batch]]:
    dataset = open_dataset(r.data, "train", None)
    objective = build_objective(r, dataset)
    place(objective, r, CPU)
    loader = open_loader(dataset, r, CPU)
    stepper = Stepper(objective, r, loader.steps_per_epoch, CPU)
    return stepper, list(loader.stream(0, stepper.steps))


def own_rule(name: str) -> bool:
    """Whether a tensor's values follow a rule of their own, which no average may touch."""
    return any(part in name for part in ("queue.", "teacher", "key", "targets", "prototypes"))


@pytest.mark.parametrize(
    ("kind", "average"), [("classify", EMA), ("classify", WARM), ("gpaco", WARM), ("moco", EMA)]
)
def test_average_is_timms_bit_for_bit_and_that_of_an_independent_loop(kind: str, average: str) -> None:
    r = recipe(kind, average)
    stepper, batches = stepping(r)
    assert stepper.average is not None
    objective = stepper.objective
    timm_average = ModelEmaV3(objective, decay=0.8, use_warmup=average == WARM)
    slow: dict[str, Tensor] = {}
    for step, batch in enumerate(batches):
        stepper(step, batch)
        timm_average.update(objective, step=step + 1)
        warm = 1 - (step + 1) ** (-2 / 3)
        decay = 0.0 if step == 0 else min(0.8, warm) if average == WARM else 0.8
        for name, value in objective.state_dict().items():
            before = slow.get(name, value.double())
            slow[name] = decay * before + (1 - decay) * value.double()
    raw = {name: value.clone() for name, value in objective.state_dict().items()}
    stepper.average.apply()
    found, theirs = objective.state_dict(), timm_average.module.state_dict()
    moved = 0
    for name, value in found.items():
        if name.startswith("contrast.") or own_rule(name):
            continue
        assert torch.equal(value, theirs[name]), name
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), slow[name], rtol=1e-5, atol=1e-6)
            moved += not torch.equal(value, raw[name])
        else:
            assert torch.equal(value, raw[name]), name
    assert moved > 50  # weights, biases and both running statistics of every layer
    assert not torch.equal(found["encoder.bn1.running_mean"], raw["encoder.bn1.running_mean"])


@pytest.mark.parametrize("kind", ["moco", "pico", "paco"])
def test_queue_key_encoder_prototypes_and_targets_stay_those_of_the_training(kind: str) -> None:
    stepper, batches = stepping(recipe(kind, EMA))
    for step, batch in enumerate(batches[:5]):
        stepper(step, batch)
    raw = {name: value.clone() for name, value in stepper.objective.state_dict().items()}
    key_encoders = {
        f"{name}.{parameter}"
        for name, module in stepper.objective.named_modules()
        for parameter in module.state_dict()
        if type(module).__name__ in ("MomentumEncoder", "KeyQueue")
    }
    assert key_encoders
    assert stepper.average is not None
    with stepper.average.applied():
        inside = {name: value.clone() for name, value in stepper.objective.state_dict().items()}
    changed = {name for name in raw if not torch.equal(raw[name], inside[name])}
    assert {"encoder.conv1.weight", "encoder.bn1.running_var"} <= changed
    assert not changed & (key_encoders | {"targets", "prototypes", "class_counts", "learned.log_prior"})
    for name, value in stepper.objective.state_dict().items():
        assert torch.equal(value, raw[name]), name  # and after the block all is as before it


def test_training_takes_no_notice_and_the_average_is_what_it_ends_with(tmp_path: Path) -> None:
    plain = run(recipe("paco"), tmp_path / "plain")
    r = recipe("paco", EMA)
    found = run(r, tmp_path / "ema")
    rows = [[row["loss"] for row in RunFolder(tmp_path / name).rows()] for name in ("plain", "ema")]
    assert rows[0] == rows[1]
    saved = RunFolder(tmp_path / "ema").load()
    assert saved is not None
    for name, value in plain.state_dict().items():
        assert torch.equal(saved.state["objective"][name], value), name
    stepper, batches = stepping(r)
    for step, batch in enumerate(batches):
        stepper(step, batch)
    assert stepper.average is not None
    stepper.average.apply()
    assert_same_state(stepper.objective, found)
    centers, others = found.centers(), plain.centers()
    assert centers is not None and others is not None
    assert not torch.equal(centers.weight, others.weight)


@pytest.mark.parametrize("kind", ["classify", "paco"])
def test_resume_gives_the_same_average_bit_for_bit(kind: str, tmp_path: Path) -> None:
    r = recipe(kind, WARM)
    undisturbed = run(r, tmp_path / "a")
    StopAfter(tmp_path / "b", 3, signal.SIGTERM)
    with pytest.raises(Interrupted):
        run(r, tmp_path / "b")
    assert_same_state(undisturbed, run(r, tmp_path / "b", resume=True))
    assert_same_state(undisturbed, run(r, tmp_path / "b", resume=True))  # a finished one, opened again


def test_an_update_that_a_loss_scaler_throws_away_leaves_a_finite_average() -> None:
    stepper, batches = stepping(recipe("classify", EMA))
    stepper.scaler = torch.amp.GradScaler("cpu", init_scale=torch.inf)
    before = copy.deepcopy(stepper.objective.state_dict())
    for step, batch in enumerate(batches[:3]):
        stepper(step, batch)
    assert stepper.average is not None and stepper.average.updates == 3
    stepper.average.apply()
    for name, parameter in stepper.objective.named_parameters():
        assert torch.allclose(parameter, before[name]), name  # nothing was trained yet


def test_an_average_is_no_change_that_a_run_may_take_on(tmp_path: Path) -> None:
    run(recipe("classify"), tmp_path)
    with pytest.raises(TrainingError, match=r"another recipe.*training\.ema was None, is \{'decay': 0\.8"):
        run(recipe("classify", EMA), tmp_path, resume=True)


def test_checkpoints_without_an_average_stay_readable(tmp_path: Path) -> None:
    """Those of earlier versions have no such part, and their recipes lack the keys."""
    r = recipe("classify")
    run(r, tmp_path)
    folder = RunFolder(tmp_path)
    saved = folder.load()
    assert saved is not None and set(saved.state) == {"objective", "optimizer", "scaler"}
    lines = folder.recipe_file.read_text().splitlines()
    old = [line for line in lines if line.strip() not in ("ema: null", "early_stopping: null")]
    assert len(old) == len(lines) - 2
    folder.recipe_file.write_text("\n".join(old) + "\n")
    run(r, tmp_path, resume=True)


def trained(r: Recipe, folder: Path) -> Objective:
    dataset = open_dataset(r.data, "train", None)
    return train(build_objective(r, dataset), dataset, r, RunFolder(folder), resume=False).objective


def test_a_checkpoint_with_the_average_of_other_weights_is_refused(tmp_path: Path) -> None:
    r = recipe("classify", EMA)
    trained(r, tmp_path)
    folder = RunFolder(tmp_path)
    saved = folder.load()
    assert saved is not None
    saved.state["average"]["mean"].pop("encoder.conv1.weight")
    with folder.locked():
        folder.save(saved)
    with pytest.raises(TrainingError, match=r"does not fit this recipe: the moving average is of other"):
        run(r, tmp_path, resume=True)
