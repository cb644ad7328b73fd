"""Published protocols that train on images: linear evaluation, and fine-tuning on few labels.

Both train the objective `classify` on a copy of the encoder by the one training loop, so they keep a state,
can be stopped, and go on.
"""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backbones import feature_dim
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset
from zoo.data.config import Subset
from zoo.data.long_tail import select_subset
from zoo.errors import ZooError
from zoo.evaluation.probe_data import ProbeData
from zoo.objectives import Classify, DataInfo
from zoo.recipe import Recipe
from zoo.recipe.protocols import LinearFullProtocol, SemiSupervisedProtocol
from zoo.seeding import derive_seed
from zoo.training import RunFolder, train

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
    protocol: TrainedProtocol, data: ProbeData, run: ProbeRun
) -> tuple[Tensor, dict[str, Any]]:
    """Train a linear layer on a copy of the encoder, frozen or with it, and classify the test images.

    The encoder itself is left alone: neither its weights nor where and how it lies in memory change.

    Args:
        protocol: with its settings.
        data: the encoder, and how its images are read.
        run: where the state is kept.

    Returns:
        Logits of the test images `[N, C]`; and what was found: the backend of the views, and of few labels
        how many images these are.

    Raises:
        Interrupted: on SIGINT or SIGTERM, with the state saved.
        ZooError: for an encoder without `num_features`, data that cannot be read, or a folder with another
            run in it.
    """
    dim = data.test.shape[1]  # first: an unreadable test image shows before hours of training
    encoder = copy.deepcopy(data.model)
    if not isinstance(getattr(encoder, "num_features", None), int):
        raise ZooError(
            'model: found no "num_features", expected an encoder as timm builds them; protocol "linear" '
            "takes any model"
        )
    if feature_dim(encoder) != dim:
        raise ZooError(f"model: found {dim} features, expected {feature_dim(encoder)}, its num_features")
    encoder.requires_grad_(True)  # the whole network, whatever somebody froze
    train_set, chosen = data.train_set, dict[str, Any]()
    if isinstance(protocol, SemiSupervisedProtocol):
        train_set = labelled_part(train_set, protocol.fraction, protocol.seed)
        chosen["train_images"] = len(train_set)
    recipe = _recipe(protocol, data, run, train_set)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("weights", recipe.training.seed))
        info = DataInfo(torch.as_tensor(train_set.class_counts))
        objective = Classify(recipe.objective, encoder, info)  # type: ignore[arg-type]
    # the number of decoding processes decides no result
    same = recipe.model_copy(update={"views": recipe.views.model_copy(update={"workers": 0})})
    folder = run.folder if run.exact else run.folder / f"{protocol.protocol}-{same.sha256[:12]}"
    trained = train(objective, train_set, recipe, RunFolder(folder), resume=run.resume).objective
    assert isinstance(trained, Classify)
    frozen = isinstance(protocol, LinearFullProtocol) or protocol.freeze_encoder
    features = data.test if frozen else data.encode_test(trained.encoder)
    logits = trained.centers().logits(features.to(data.device))
    return logits, {**chosen, "backend": recipe.views.backend}


def labelled_part(train_set: ImageDataset, fraction: float, seed: int) -> ImageDataset:
    """Return the part of a training set whose labels are used, in the set's order.

    They are those that a recipe's `data.subset` keeps with the same fraction and seed.
    """
    part = Subset(fraction=fraction, seed=seed)
    return train_set.subset(select_subset(part, train_set.labels, train_set.num_classes))


def _recipe(protocol: TrainedProtocol, data: ProbeData, run: ProbeRun, train_set: ImageDataset) -> Recipe:
    """Return the recipe of the training: the objective `classify` with the protocol's settings."""
    if isinstance(protocol, LinearFullProtocol):
        what, frozen, optimizer, drop_last = "Linear evaluation", True, "momentum", False
        name = "multistep" if protocol.milestones else "constant"
        schedule = {"name": name, "milestones": protocol.milestones, "decay_rate": protocol.decay_rate}
    else:
        what, frozen = "Fine-tuning on few labels", protocol.freeze_encoder
        optimizer = "sgd"  # timm's, with Nesterov momentum
        schedule = {"name": "cosine", "milestones": [], "decay_rate": 0.0}
        # so BatchNorm never gets a rest of one image, and a few labels are a batch all the same
        drop_last = len(train_set) >= protocol.batch_size
    sources = {
        "partial_labels": None,
        "mean": data.mean,
        "std": data.std,
        "image_size": None,  # crops are of the images as stored
    }
    plain: dict[str, Any] = {
        "name": f"{run.arch}.{protocol.protocol}",
        "description": f"{what} of {run.name}, encoder {_fingerprint(data.model)}, "
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
            "freeze_encoder": frozen,
        },
        "optimizer": {
            "name": optimizer,
            "lr": protocol.lr,
            "weight_decay": protocol.weight_decay,
            "momentum": protocol.momentum,
            "decay_norm_and_bias": True,
        },
        "schedule": {"warmup_epochs": 0, "warmup_lr": 0.0, "min_lr": 0.0, **schedule},
        "training": {
            "epochs": protocol.epochs,
            "batch_size": protocol.batch_size,
            "seed": protocol.seed,
            "device": data.device.type,
            "threads": None,
            "precision": protocol.precision,
            "channels_last": protocol.channels_last,
            "clip_grad": None,
            "log_every": 20,
            "checkpoint_every": 5,  # epochs; a signal saves the state in between
            "drop_last": drop_last,
        },
        "evaluation": [],
    }
    return parse(Recipe, plain, f"protocol {protocol.protocol}")


def _fingerprint(model: nn.Module) -> str:
    """Return a hash of all weights and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(plain.view(torch.uint8).numpy())
    return digest.hexdigest()
