"""The published linear evaluation: a linear layer on a frozen encoder, trained by the one training loop."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backbones import feature_dim
from zoo.config import parse
from zoo.data import DataConfig
from zoo.errors import ZooError
from zoo.evaluation.classifier import center_logits
from zoo.evaluation.encoded import Encoded
from zoo.objectives import Classify, DataInfo
from zoo.seeding import derive_seed
from zoo.training import Recipe, RunFolder, train
from zoo.training.protocols import LinearFullProtocol

LOG_EVERY = 20  # steps
CHECKPOINT_EVERY = 5  # epochs; a signal saves the state in between


class ProbeRun(NamedTuple):
    """What the training of a linear layer needs beside the encoded data.

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


def train_linear(
    protocol: LinearFullProtocol, encoded: Encoded, run: ProbeRun
) -> tuple[Tensor, dict[str, Any]]:
    """Train the layer on the augmented training images, and classify the test images by it.

    The encoder is copied: neither its weights nor where and how it lies in memory change.

    Returns:
        Predicted classes of the test images `[N]`, and the backend that made the views.

    Raises:
        Interrupted: on SIGINT or SIGTERM, with the state saved.
        ZooError: for an encoder without `num_features`, data that cannot be read, or a folder with another
            run in it.
    """
    test = encoded.test.features  # first: an unreadable test image shows before hours of training
    encoder = copy.deepcopy(encoded.model)
    _check_dim(encoder, test.shape[1])
    recipe = linear_recipe(protocol, encoded, run)
    objective = _objective(recipe, encoder, encoded)
    folder = run.folder if run.exact else run.folder / f"linear_full-{_digest(recipe)}"
    trained = train(objective, encoded.train_set, recipe, RunFolder(folder), resume=run.resume)
    assert isinstance(trained.objective, Classify)
    predictions = center_logits(test.to(encoded.device), trained.objective.centers()).argmax(dim=1)
    return predictions, {"backend": recipe.views.backend}


def linear_recipe(protocol: LinearFullProtocol, encoded: Encoded, run: ProbeRun) -> Recipe:
    """Return the recipe of the training: the objective `classify` on a frozen encoder."""
    data_hash = encoded.train_set.describe()["sha256"]
    data = {
        "partial_labels": None,
        "mean": encoded.mean,
        "std": encoded.std,
        "image_size": None,  # crops are of the images as stored
        "max_bad_images": encoded.max_bad_images,
    }
    plain: dict[str, Any] = {
        "name": f"{run.arch}.linear_full",
        "description": f"Linear evaluation of {run.name}, encoder {_fingerprint(encoded.model)}, "
        f"data {data_hash}",
        "backbone": {"arch": run.arch},
        "init": None,
        "data": run.data.model_copy(update=data),
        "views": encoded.views(protocol),
        "objective": {
            "name": "classify",
            "loss": "cross_entropy",
            "label_smoothing": 0.0,
            "freeze_encoder": True,
            "head_std": protocol.init_std,
        },
        "optimizer": {
            "name": "momentum",
            "lr": protocol.lr,
            "weight_decay": protocol.weight_decay,
            "momentum": protocol.momentum,
            "decay_norm_and_bias": True,
        },
        "schedule": {
            "name": "multistep" if protocol.milestones else "constant",
            "warmup_epochs": 0,
            "warmup_lr": 0.0,
            "min_lr": 0.0,
            "milestones": protocol.milestones,
            "decay_rate": protocol.decay_rate,
        },
        "training": {
            "epochs": protocol.epochs,
            "batch_size": protocol.batch_size,
            "drop_last": False,
            "seed": protocol.seed,
            "device": encoded.device.type,
            "threads": None,
            "precision": protocol.precision,
            "channels_last": protocol.channels_last,
            "clip_grad": None,
            "log_every": LOG_EVERY,
            "checkpoint_every": CHECKPOINT_EVERY,
        },
        "evaluation": [],
    }
    return parse(Recipe, plain, "protocol linear_full")


def _objective(recipe: Recipe, encoder: nn.Module, encoded: Encoded) -> Classify:
    info = DataInfo(torch.as_tensor(encoded.train_set.class_counts))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("weights", recipe.training.seed))
        return Classify(recipe.objective, encoder, info)  # type: ignore[arg-type]


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
