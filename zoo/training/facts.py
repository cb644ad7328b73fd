"""What a release records about how and where it was trained."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from zoo import hub
from zoo.data import ImageDataset
from zoo.recipe import Recipe
from zoo.recipe.methods import CHANGING_AFTERWARDS
from zoo.release.provenance import START, TEACHERS, sha256_of
from zoo.training import Stage, Trained, pick_device
from zoo.training.monitor import split_validation
from zoo.training.teachers import teachers_of


def training_facts(
    recipe: Recipe,
    trained: Trained,
    train_set: ImageDataset,
    ranks: int = 1,
    changes: Sequence[Mapping[str, Any]] = (),
    stages: Sequence[Stage] = (),
) -> dict[str, Any]:
    """What metrics.json and the card say about how the weights came to be.

    Args:
        recipe: as it was in the end.
        trained: what the loop returned.
        train_set: the training images, those that were put aside for validation among them.
        ranks: how many there were in the end.
        changes: `RunFolder.changes()`.
        stages: of the recipe's method, if it has one.
    """
    said_elsewhere = ("description", "evaluation")
    changes = [row for row in changes if row["key"] not in said_elsewhere]
    section, learned_from = recipe.training, split_validation(train_set, recipe).training
    labels = torch.tensor(learned_from.labels, device=next(trained.objective.parameters()).device)
    return {
        **({} if recipe.method is None else {"method": recipe.method.name, "stages": _each(stages)}),
        "steps": trained.steps,
        "epochs": sum(stage.epochs for stage in stages),
        "images": trained.images,
        "seconds": round(trained.seconds, 1),
        "images_per_second": round(trained.images / max(trained.seconds, 1e-9), 1),
        **({"changed_on_resume": "; ".join(map(_change, changes))} if changes else {}),
        **({"moving_average": section.ema.model_dump()} if section.ema else {}),
        **({"early_stopping": _stopping(trained.stopping, recipe)} if trained.stopping else {}),
        **({} if trained.epoch is None else {"snapshot": _snapshot(trained.epoch, recipe)}),
        **trained.objective.facts(labels),
        "hardware": hardware(pick_device(recipe.training.device), ranks),
        "ranks": ranks,
        "precision": recipe.training.precision,
        **start_facts(recipe),
        "seed": recipe.training.seed,
        "date": datetime.fromtimestamp(trained.ended, UTC).isoformat(timespec="seconds"),
        "versions": versions(),
    }


def _stopping(facts: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """What early stopping did; it saw the classifier as it was trained, before a method's last touch."""
    if not isinstance(recipe.method, CHANGING_AFTERWARDS):
        return dict(facts)
    return {**facts, "judged": f"the classifier as it was trained, before {recipe.method.name} changed it"}


def _snapshot(epoch: float, recipe: Recipe) -> dict[str, float]:
    """Where a training was that had not come to its end."""
    return {"epoch": epoch, "of_epochs": recipe.training.epochs}


def _each(stages: Sequence[Stage]) -> dict[str, dict[str, Any]]:
    return {
        stage.name: {
            "epochs": stage.epochs,
            "steps": stage.trained.steps,
            "seconds": round(stage.trained.seconds, 1),
        }
        for stage in stages
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries that a figure may depend on."""
    return {name: version(name) for name in ("torch", "timm", "torchvision")}


def start_facts(recipe: Recipe) -> dict[str, str]:
    """Say which weights the release that training started from has: its name may come to mean others."""
    if recipe.init is None:
        return {}
    return {"init_weights_sha256": _sha256_of(START, recipe.init.release)}


def origin_facts(recipe: Recipe) -> dict[str, Any]:
    """Return `start_facts`, and `teacher_sha256` as the objective will record it."""
    teachers = [_sha256_of(TEACHERS, name) for name in teachers_of(recipe)]
    return {**start_facts(recipe), **({"teacher_sha256": teachers} if teachers else {})}


def _sha256_of(key: str, name: str) -> str:
    return sha256_of(key, hub.open(name).config)


def _change(row: Mapping[str, Any]) -> str:
    return f"{row['key']} {row['from']} to {row['to']} after step {row['step']}"


def hardware(device: torch.device, ranks: int = 1) -> str:
    """Name the machine's relevant part: the GPU, or the processor and how many cores torch uses."""
    if ranks > 1:
        return f"{ranks} ranks, each {hardware(device)}"
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = min(torch.get_num_threads(), os.cpu_count() or 1)
    return f"{cores} CPU core{'s' if cores > 1 else ''} ({_processor()})"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
