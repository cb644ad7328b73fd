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
from zoo.release.provenance import START, sha256_of
from zoo.training.loop import Trained
from zoo.training.monitor import split_validation
from zoo.training.precision import pick_device
from zoo.training.stages import Stage


def training_facts(
    recipe: Recipe,
    trained: Trained,
    train_set: ImageDataset,
    ranks: int = 1,
    changes: Sequence[Mapping[str, Any]] = (),
    stages: Sequence[Stage] = (),
) -> dict[str, Any]:
    """Return the section `training` of metrics.json.

    Args:
        recipe: as it was in the end.
        trained: the result of the loop.
        train_set: the training images, with those that were held out for validation.
        ranks: how many there were in the end.
        changes: `RunFolder.changes()`.
        stages: of the recipe's method, if it has one.
    """
    section, learned_from = recipe.training, split_validation(train_set, recipe)[0]
    labels = torch.tensor(learned_from.labels, device=next(trained.objective.parameters()).device)
    changed = "; ".join(
        f"{row['key']} {row['from']} to {row['to']} after step {row['step']}"
        for row in changes
        if row["key"] not in ("description", "evaluation")
    )
    of_each = {
        stage.name: {
            "epochs": stage.epochs,
            "steps": stage.trained.steps,
            "seconds": round(stage.trained.seconds, 1),
        }
        for stage in stages
    }
    snapshot = {"epoch": trained.epoch, "of_epochs": section.epochs}
    return {
        **({} if recipe.method is None else {"method": recipe.method.name, "stages": of_each}),
        "steps": trained.steps,
        "epochs": sum(stage.epochs for stage in stages),
        "images": trained.images,
        "seconds": round(trained.seconds, 1),
        "images_per_second": round(trained.images / max(trained.seconds, 1e-9), 1),
        **({"changed_on_resume": changed} if changed else {}),
        **({"moving_average": section.ema.model_dump()} if section.ema else {}),
        **({"early_stopping": trained.stopping} if trained.stopping else {}),
        **({} if trained.epoch is None else {"snapshot": snapshot}),
        **trained.objective.facts(labels),
        "hardware": hardware(pick_device(section.device), ranks),
        "ranks": ranks,
        "precision": section.precision,
        **start_facts(recipe),
        "seed": section.seed,
        "date": datetime.fromtimestamp(trained.ended, UTC).isoformat(timespec="seconds"),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries that a figure may depend on."""
    return {name: version(name) for name in ("torch", "timm", "torchvision")}


def start_facts(recipe: Recipe) -> dict[str, str]:
    """Return the hash of the weights that training started from: their name may come to mean others."""
    if recipe.init is None:
        return {}
    return {"init_weights_sha256": sha256_of(START, hub.open(recipe.init.release).config)}


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
