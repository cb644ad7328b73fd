"""The result of a training or checkpoint, and what a release records about the training."""

import math
import os
import platform
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zoo import hub
from zoo.data import ImageDataset
from zoo.data.batches import batches_per_epoch
from zoo.errors import TrainingError
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.release.provenance import START, sha256_of
from zoo.training.adapt import merge_adapters
from zoo.training.build import build_objective
from zoo.training.checkpoint import Checkpoint
from zoo.training.monitor import split_validation
from zoo.training.precision import pick_device
from zoo.training.run import RunFolder


class Trained(NamedTuple):
    """A training that ended or was cut at a checkpoint; `objective` has the weights to release.

    `images` counts repetitions, `seconds` excludes pauses, `trained_parameters` includes adapters and heads;
    `ended` is a Unix time; `stopping` describes early stopping; `epoch` is None at the end.
    """

    recipe: Recipe
    run: RunFolder
    objective: Objective
    steps: int
    images: int
    seconds: float
    ended: float
    trained_parameters: int
    stopping: dict[str, Any] | None = None
    epoch: float | None = None

    def facts(self) -> dict[str, float]:
        """Return epochs (fewer after early stopping), steps, trained parameters and seconds."""
        stopped = self.recipe.training.epochs if self.stopping is None else self.stopping["stopped_at_epoch"]
        epochs = stopped if self.epoch is None else self.epoch
        facts = {"epochs": epochs, "steps": self.steps, "trained_parameters": self.trained_parameters}
        return {**facts, "seconds": round(self.seconds, 1)}


def training_facts(
    recipe: Recipe, objective: Objective, stages: Sequence[Trained], train_set: ImageDataset, ranks: int = 1
) -> dict[str, Any]:
    """Return the section `training` of metrics.json; `stages` are the trainings in order, possibly none."""
    section, learned_from = recipe.training, split_validation(train_set, recipe)[0]
    labels = torch.tensor(learned_from.labels, device=next(objective.parameters()).device)
    seconds, images = sum(each.seconds for each in stages), sum(each.images for each in stages)
    facts: dict[str, Any] = {
        "steps": sum(each.steps for each in stages),
        "epochs": sum(each.facts()["epochs"] for each in stages),
        "trained_parameters": max((each.trained_parameters for each in stages), default=0),
        "images": images,
        "seconds": round(seconds, 1),
        "images_per_second": round(images / max(seconds, 1e-9), 1),
    }
    if recipe.method is not None:
        of_each = {each.recipe.name.partition(".")[2]: each.facts() for each in stages}
        facts = {"method": recipe.method.name, "stages": of_each, **facts}
    if section.ema:
        facts["moving_average"] = section.ema.model_dump()
    if stopped := [each.stopping for each in stages if each.stopping]:
        facts["early_stopping"] = stopped[0]
    if stages and stages[-1].epoch is not None:
        facts["snapshot"] = {"epoch": stages[-1].epoch, "of_epochs": section.epochs}
    libraries = ["torch", "timm", "torchvision", *(["peft"] if recipe.adapt else [])]
    ended = max((each.ended for each in stages), default=time.time())
    if recipe.init is not None:  # the name may later refer to other weights
        facts["init_weights_sha256"] = sha256_of(START, hub.open(recipe.init.release).config)
    return {
        **facts,
        **objective.facts(labels),
        "hardware": hardware(pick_device(section.device), ranks),
        "ranks": ranks,
        "precision": section.precision,
        "seed": section.seed,
        "date": datetime.fromtimestamp(ended, UTC).isoformat(timespec="seconds"),
        "versions": {name: version(name) for name in libraries},
    }


def trained_at(
    at: Checkpoint, recipe: Recipe, run: RunFolder, objective: Objective, data: ImageDataset, best: Any
) -> Trained:
    """Return the result of a training that ends `at` a checkpoint; `best` is `Monitor.best`.

    Adapters are merged into the encoder.
    """
    section, (training, validation) = recipe.training, split_validation(data, recipe)
    step, size, batch = at.step, len(training), section.batch_size
    per_epoch = batches_per_epoch(size, batch, drop_last=section.drop_last)
    images = step // per_epoch * min(size, per_epoch * batch) + step % per_epoch * batch
    stopping, early = None, section.early_stopping
    if best is not None and early is not None:
        objective.load_state_dict(best["weights"], strict=False)
        stopping = {
            "validation_fraction": early.validation_fraction,
            "validation_images": len(validation or ()),
            "metric": early.metric,
            "best_value": round(best["value"], 4) if math.isfinite(best["value"]) else None,
            "best_epoch": best["step"] // per_epoch,
            "stopped_at_epoch": step // per_epoch,
        }
    trained = sum(p.numel() for p in objective.parameters() if p.requires_grad)
    merge_adapters(objective.encoder)
    return Trained(recipe, run, objective, step, images, at.seconds, at.written, trained, stopping)


def checkpoint_of(run: RunFolder, step: int | None) -> Checkpoint:
    """Read a step's checkpoint, or the newest; TrainingError, listing the others, if it is missing."""
    steps = sorted(found for found in run.checkpoints() if found)
    if not steps or step not in (None, *steps):
        there, found = ", ".join(map(str, steps)) or "none yet", step or "none"
        raise TrainingError(f'step: found {found}, but "{run.path}" has checkpoints of the steps: {there}')
    checkpoint = run.load(step)
    assert checkpoint is not None
    return checkpoint


def trained_until(checkpoint: Checkpoint, recipe: Recipe, run: RunFolder, train_set: ImageDataset) -> Trained:
    """Return the result of a training as if it had ended at a checkpoint; refuse other images."""
    run.check_images(train_set)
    section, size = recipe.training, len(split_validation(train_set, recipe)[0])
    per_epoch = batches_per_epoch(size, section.batch_size, drop_last=section.drop_last)
    step, patience = checkpoint.step, section.early_stopping
    stopping = checkpoint.state.get("stopping", {"waited": 0, "best": None})
    found = f'the checkpoint of step {step} in "{run.path}"'
    if step >= section.epochs * per_epoch or (patience and stopping["waited"] >= patience.patience):
        raise TrainingError(f"{found} is the end of the training; its release is what --resume writes")
    if patience and stopping["best"] is None:
        raise TrainingError(f"{found} is from before the first evaluation of training.early_stopping")
    # a checkpoint has all weights: the release that the training started from may be gone
    objective = build_objective(recipe.model_copy(update={"init": None}), train_set)
    average = checkpoint.state.get("average", {}).get("mean", {})
    objective.load_state_dict({**checkpoint.state["objective"], **average})
    epoch = step // per_epoch if step % per_epoch == 0 else round(step / per_epoch, 2)
    trained = trained_at(checkpoint, recipe, run, objective, train_set, stopping["best"])
    return trained._replace(epoch=epoch)


def hardware(device: torch.device, ranks: int = 1) -> str:
    """Name the hardware: the GPU, or the processor and the number of cores that torch uses."""
    if ranks > 1:
        return f"{ranks} ranks, each {hardware(device)}"
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores, cpuinfo = min(torch.get_num_threads(), os.cpu_count() or 1), Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    name = found[1].strip() if found else platform.processor() or platform.machine()
    return f"{cores} CPU core{'s' if cores > 1 else ''} ({name})"
