"""Protocols that train on images, by the one training loop: a classifier on a copy of the encoder."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from zoo.backbones import feature_dim
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset
from zoo.errors import ZooError
from zoo.evaluation.encoded import ProbeData
from zoo.objectives import Classify, DataInfo
from zoo.recipe import Recipe
from zoo.recipe.protocols import LinearFullProtocol, SemiSupervisedProtocol
from zoo.seeding import derive_seed
from zoo.training import RunFolder, train

LOG_EVERY = 20  # steps
CHECKPOINT_EVERY = 5  # epochs; a signal saves the state in between

TrainedProtocol = LinearFullProtocol | SemiSupervisedProtocol


class ProbeRun(NamedTuple):
    """What a training needs beside the encoded data.

    Attributes:
        name: of the encoder, for the run's own record.
        arch: its architecture, likewise.
        data: what the data sets were opened from.
        folder: the run gets a folder in it that is named by everything that decides its result.
        exact: make `folder` itself the run's.
        resume: go on from the last checkpoint there, or begin if there is none.
    """

    name: str
    arch: str
    data: DataConfig
    folder: Path
    exact: bool = False
    resume: bool = False


def train_classifier(
    protocol: TrainedProtocol,
    data: ProbeData,
    run: ProbeRun,
    train_set: ImageDataset,
    sections: dict[str, dict[str, Any]],
) -> tuple[Classify, Recipe]:
    """Train a linear layer on a copy of the encoder, frozen or with it.

    The encoder itself is left alone: neither its weights nor where and how it lies in memory change.

    Args:
        protocol: with the settings that both protocols have.
        data: the encoder, and how its images are read.
        run: where the state is kept.
        train_set: images to train on.
        sections: see `probe_recipe`.

    Returns:
        The trained objective, and the recipe by which it was trained.

    Raises:
        Interrupted: on SIGINT or SIGTERM, with the state saved.
        ZooError: for an encoder without `num_features`, data that cannot be read, or a folder with another
            run in it.
    """
    dim = data.test.shape[1]  # first: an unreadable test image shows before hours of training
    encoder = copy.deepcopy(data.model)
    _check_dim(encoder, dim)
    encoder.requires_grad_(True)  # the whole network, whatever somebody froze; a frozen one is frozen below
    recipe = probe_recipe(protocol, data, run, train_set, sections)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("weights", recipe.training.seed))
        info = DataInfo(torch.as_tensor(train_set.class_counts))
        objective = Classify(recipe.objective, encoder, info)  # type: ignore[arg-type]
    folder = run.folder if run.exact else run.folder / f"{protocol.protocol}-{_digest(recipe)}"
    trained = train(objective, train_set, recipe, RunFolder(folder), resume=run.resume).objective
    assert isinstance(trained, Classify)
    return trained, recipe


def probe_recipe(
    protocol: TrainedProtocol,
    data: ProbeData,
    run: ProbeRun,
    train_set: ImageDataset,
    sections: dict[str, dict[str, Any]],
) -> Recipe:
    """Return the recipe of the training: the objective `classify`.

    Args:
        protocol: as for `train_classifier`.
        data: likewise.
        run: likewise.
        train_set: likewise.
        sections: `objective`, `optimizer`, `schedule` and `training`: what the settings that protocols share
            leave open.
    """
    what = {"linear_full": "Linear evaluation", "semi_supervised": "Fine-tuning on few labels"}
    sources = {
        "partial_labels": None,
        "mean": data.mean,
        "std": data.std,
        "image_size": None,  # crops are of the images as stored
    }
    plain: dict[str, Any] = {
        "name": f"{run.arch}.{protocol.protocol}",
        "description": f"{what[protocol.protocol]} of {run.name}, encoder {_fingerprint(data.model)}, "
        f"data {train_set.describe()['sha256']}",
        "backbone": {"arch": run.arch},
        "init": None,
        "data": run.data.model_copy(update=sources),
        "views": data.views(protocol),
        "objective": {
            "name": "classify",
            "loss": "cross_entropy",
            "label_smoothing": 0.0,
            "head_std": protocol.init_std,
            **sections["objective"],
        },
        "optimizer": {
            "lr": protocol.lr,
            "weight_decay": protocol.weight_decay,
            "momentum": protocol.momentum,
            "decay_norm_and_bias": True,
            **sections["optimizer"],
        },
        "schedule": {"warmup_epochs": 0, "warmup_lr": 0.0, "min_lr": 0.0, **sections["schedule"]},
        "training": {
            "epochs": protocol.epochs,
            "batch_size": protocol.batch_size,
            "seed": protocol.seed,
            "device": data.device.type,
            "threads": None,
            "precision": protocol.precision,
            "channels_last": protocol.channels_last,
            "clip_grad": None,
            "log_every": LOG_EVERY,
            "checkpoint_every": CHECKPOINT_EVERY,
            **sections["training"],
        },
        "evaluation": [],
    }
    return parse(Recipe, plain, f"protocol {protocol.protocol}")


def _check_dim(encoder: nn.Module, found: int) -> None:
    """The layer's width is what the encoder says of itself."""
    if not isinstance(getattr(encoder, "num_features", None), int):
        raise ZooError(
            'model: found no "num_features", expected an encoder as timm builds them; protocol "linear" '
            "takes any model"
        )
    if feature_dim(encoder) != found:
        raise ZooError(
            f"model: found {found} features, expected {feature_dim(encoder)} as its num_features says"
        )


def _fingerprint(model: nn.Module) -> str:
    """Return a hash of all weights and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(plain.view(torch.uint8).numpy())
    return digest.hexdigest()


def _digest(recipe: Recipe) -> str:
    """Name a run by all that decides its result, of which the number of decoding processes is no part."""
    views = recipe.views.model_copy(update={"workers": 0})
    return recipe.model_copy(update={"views": views}).sha256[:12]
