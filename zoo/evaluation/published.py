"""Published protocols that train on images: linear evaluation, and fine-tuning on few labels.

Both train the objective `classify` on a copy of the encoder in the common training loop; both can be resumed.
"""

from __future__ import annotations

import copy
import hashlib
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from zoo.backbones import feature_dim, name_of
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, ViewsConfig
from zoo.data.batches import derive_seed
from zoo.data.config import Subset
from zoo.data.decode import open_image
from zoo.data.long_tail import select_subset
from zoo.errors import DataError, ZooError
from zoo.objectives import Classify, DataInfo
from zoo.recipe import Recipe
from zoo.recipe.protocols import LinearFullProtocol, SemiSupervisedProtocol
from zoo.training import RunFolder, train
from zoo.training.adapt import freeze_encoder

if TYPE_CHECKING:
    from zoo.evaluation.measure import ProbeData

TrainedProtocol = LinearFullProtocol | SemiSupervisedProtocol


class ProbeRun(NamedTuple):
    """Where a training of `linear_full` or `semi_supervised` keeps its state.

    The run's folder is `folder` itself if `exact`, else a subfolder named by everything that determines the
    result. `data` is the configuration that the data sets were opened from, for the run's recipe.
    """

    data: DataConfig
    folder: Path
    exact: bool = False
    resume: bool = False


def train_classifier(
    protocol: TrainedProtocol, data: ProbeData, run: ProbeRun
) -> tuple[Tensor, dict[str, Any]]:
    """Train a linear layer on a copy of the encoder, frozen or fine-tuned; return logits of the test images.

    The logits are `[N, C]`. Also returns the backend of the views and, for `semi_supervised`, the number of
    labelled images. The given encoder and its memory format do not change.

    Raises:
        Interrupted: when stopped by a signal, after saving the state.
        ZooError: for an encoder without `num_features`, unreadable data, or a folder with another run in it.
    """
    dim = data.test.shape[1]  # first: fail on an unreadable test image before hours of training
    encoder, device = copy.deepcopy(data.encoder.model), data.encoder.device
    if not isinstance(getattr(encoder, "num_features", None), int) or feature_dim(encoder) != dim:
        raise ZooError(f'model: found no "num_features" of {dim}, as timm has it; "linear" takes any model')
    train_set, chosen = data.train_set, dict[str, Any]()
    if isinstance(protocol, SemiSupervisedProtocol):
        few = Subset(fraction=protocol.fraction, seed=protocol.seed)  # drawn as by a recipe's `data.subset`
        train_set = train_set.subset(select_subset(few, train_set.labels, train_set.num_classes))
        chosen["train_images"] = len(train_set)
    recipe = _recipe(protocol, data, run, train_set)
    freeze_encoder(encoder, recipe)  # whatever the caller froze or did not
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("weights", recipe.training.seed))
        info = DataInfo(torch.as_tensor(train_set.class_counts))
        objective = Classify(recipe.objective, encoder, info)  # type: ignore[arg-type]
    # the number of decoding processes does not affect the result
    same = recipe.model_copy(update={"views": recipe.views.model_copy(update={"workers": 0})})
    digest = hashlib.sha256(same.to_yaml().encode()).hexdigest()[:12]
    folder = run.folder if run.exact else run.folder / f"{protocol.protocol}-{digest}"
    trained = train(objective, train_set, recipe, RunFolder(folder), resume=run.resume).objective
    assert isinstance(trained, Classify)
    features = data.test
    if isinstance(protocol, SemiSupervisedProtocol):
        tuned = replace(data.encoder, model=trained.encoder, release=None)  # no release: no cache
        features = tuned.encode(data.test_images).features
    logits = trained.centers().logits(features.to(device))
    return logits, {**chosen, "backend": recipe.views.backend}


def choose_backend(train_set: ImageDataset) -> Literal["tensor", "stream"]:
    """Return `tensor` if all training images have one size and take less than 4 GiB, on any machine."""
    first: tuple[int, int] | None = None
    for index in range(len(train_set)):
        # an unreadable image is reported by the loader
        with suppress(DataError), open_image(train_set.item(index), train_set.name_of(index)) as image:
            first = first or image.size
            if image.size != first or 3 * len(train_set) * math.prod(first) >= 4 << 30:
                return "stream"
    return "tensor" if first else "stream"


def _recipe(protocol: TrainedProtocol, data: ProbeData, run: ProbeRun, train_set: ImageDataset) -> Recipe:
    """Return the recipe of the training: the objective `classify` with the protocol's settings."""
    encoder, arch = data.encoder, name_of(data.encoder.model)
    if isinstance(protocol, LinearFullProtocol):
        train_only, optimizer, drop_last = list[str](), "momentum", False
        name = "multistep" if protocol.milestones else "constant"
        schedule = {"name": name, "milestones": protocol.milestones, "decay_rate": protocol.decay_rate}
    else:
        train_only, optimizer, schedule = ["*"], "sgd", {"name": "cosine"}  # sgd: Nesterov's
        # BatchNorm must not get a last batch of one image, but fewer images than a batch are trained on
        drop_last = len(train_set) >= protocol.batch_size
    backend = choose_backend(data.train_set) if protocol.backend == "auto" else protocol.backend
    pixels = {"mean": [*encoder.preprocess.mean], "std": [*encoder.preprocess.std], "image_size": None}
    views = [protocol.view(encoder.view.size)]
    state = {key: value.cpu().contiguous().clone() for key, value in encoder.model.state_dict().items()}
    weights, images = hashlib.sha256(save(state)).hexdigest(), train_set.describe()["sha256"]
    plain: dict[str, Any] = {
        "name": f"{arch}.{protocol.protocol}",
        "description": f"{protocol.protocol} of {encoder.name}, encoder {weights}, data {images}",
        "backbone": {"arch": arch},
        "data": run.data.model_copy(update={**pixels, "partial_labels": None}),
        "views": ViewsConfig(backend=backend, workers=encoder.workers, train=views, eval=encoder.view),
        "objective": {"name": "classify", "head_std": protocol.init_std},
        "train_only": train_only,
        "optimizer": {"name": optimizer, **protocol.model_dump(include={"lr", "weight_decay", "momentum"})},
        "schedule": schedule,
        "training": {
            **protocol.model_dump(include={"epochs", "batch_size", "seed", "precision", "channels_last"}),
            **{"device": encoder.device.type, "log_every": 20, "drop_last": drop_last},
        },
        "evaluation": [],
    }
    return parse(Recipe, plain, f"protocol {protocol.protocol}")
