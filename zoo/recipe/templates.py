"""Recipes that are made for people's own images: a fine-tuning, or a pretraining without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from timm.data import resolve_data_config
from torch import nn

from zoo import backbones, hub
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.config import Digits, Memory, Source, TorchvisionSource
from zoo.data.memory import Root
from zoo.errors import DataError
from zoo.modules import has_batchnorm
from zoo.recipe.naming import words_and_name
from zoo.recipe.overrides import apply, value_of
from zoo.release import Preprocess, Release

SMALL = 64
"""Up to so many pixels a side, images are kept at the input's size and augmented on the device."""

_WORKERS = 4  # that decode images; not the machine's number of cores, for recipes are to be the same anywhere

MadeFor = Literal["moco", "simclr"]
"""Objectives that recipes are made for; both learn without labels."""

TITLES: dict[MadeFor, tuple[str, str]] = {"moco": ("MoCo v2", "moco_v2"), "simclr": ("SimCLR", "simclr")}
"""What they are called in a description, and in a name."""

_STEPS, _FINETUNING_BATCH, _FINETUNING_EPOCHS = 600, 64, (5, 50)  # aimed at; fewest and most epochs
_EPOCHS, _SEEN, _FEWEST = 200, 10_000_000, 50  # at most, images seen in all, epochs at least
_BATCH, _SMALLEST, _STEPS_OF_EPOCH = 256, 32, 16  # images of a step at most and at least, steps of an epoch
_QUEUE, _PART = 65_536, 4  # keys at most; images for each key
_LOOKS = 20  # at the neighbours, and checkpoints that are written
_GROUP = 32  # keys with BatchNorm statistics of their own: those of one of the authors' GPUs


class Start(NamedTuple):
    """The weights that a training starts from.

    Attributes:
        spelling: what means them and nothing else, as a recipe's `init.release` has it.
        told: how a description names them, wherever they lie.
        release: None for one that was not opened.
    """

    spelling: str
    told: str
    release: Release | None


def find_start(init: str | Path | Release, *, opened: bool = True) -> Start:
    """Find a start by its name; a release in a folder is opened in any case.

    Raises:
        ReleaseError: for a name that means nothing, or two things.
    """
    init = hub.portable(init)
    reading = hub.resolve(init)
    own = reading.kind == "folder"
    release = hub.open(init) if own or opened else None
    told = f"{release.name} ({_hash(release)})" if own and release is not None else reading.spelling
    return Start(reading.spelling, told, release)


def _hash(release: Release) -> str:
    """Say which weights a release in a folder has: where that lies is nobody's business but its owner's."""
    return f"weights of sha256 {release.config['zoo']['weights_sha256'][:12]}"


class Backbone(NamedTuple):
    """An architecture, how it takes images, and of what kind it is.

    Attributes:
        arch: as timm spells it.
        args: of the architecture.
        preprocess: of an image at test time.
        convolutional: whether it has BatchNorm and no attention between places: such learn by SGD, all
            others by AdamW.
        layered: whether timm knows its layers, as layer-wise decay needs.
    """

    arch: str
    args: dict[str, Any]
    preprocess: Preprocess
    convolutional: bool
    layered: bool

    @property
    def section(self) -> dict[str, Any]:
        """The recipe's `backbone`."""
        return {"arch": self.arch, "args": self.args}


def backbone_of(start: Start) -> Backbone:
    """Return the backbone of an opened start."""
    assert start.release is not None
    config = start.release.config
    return _backbone(str(config["architecture"]), dict(config["model_args"]), start.release.preprocess)


def new_backbone(arch: str, args: Mapping[str, Any]) -> Backbone:
    """Return a backbone without weights, with the size, mean and std that timm states for it.

    Raises:
        ZooError: for an unknown architecture, or arguments that it refuses.
    """
    return _backbone(arch, dict(args), None)


def at_size(backbone: Backbone, size: int) -> Backbone:
    """Return a backbone for images of another size: one that is built for a single size is built for that.

    Raises:
        ZooError: for a size that the architecture refuses.
    """
    args = backbone.args
    if size != backbone.preprocess.input_size:
        built_for = backbones.size_built_for(_without_weights(backbone))
        args = args if built_for in (None, size) else args | {"img_size": size}
    found = backbone._replace(args=args, preprocess=replace(backbone.preprocess, input_size=size))
    _without_weights(found)
    return found


def _without_weights(backbone: Backbone) -> nn.Module:
    with torch.device("meta"):
        return backbones.create(backbone.arch, **backbone.args)


def _backbone(arch: str, args: dict[str, Any], preprocess: Preprocess | None) -> Backbone:
    with torch.device("meta"):  # only its kind is asked for
        model: Any = backbones.create(arch, **args)
    known = preprocess or _timms(model.pretrained_cfg)
    # a pooling by attention stands behind convolutions
    names = {type(module).__name__.lower() for module in model.modules()}
    attends = any("attention" in name and "pool" not in name for name in names)
    return Backbone(arch, args, known, has_batchnorm(model) and not attends, hasattr(model, "group_matcher"))


def _timms(pretrained_cfg: dict[str, Any]) -> Preprocess:
    cfg = resolve_data_config({}, pretrained_cfg=pretrained_cfg)
    return Preprocess(
        cfg["input_size"][-1], cfg["crop_pct"], cfg["interpolation"], tuple(cfg["mean"]), tuple(cfg["std"])
    )


def overridden_data(config: DataConfig, overrides: Sequence[str]) -> DataConfig:
    """Return the data as overrides of `data` have it, by which the rest of a recipe is made."""
    plain = {"data": config.model_dump(mode="json")}
    for each in overrides:
        if each.strip().startswith("data."):
            apply(plain, each, "overrides")
    return parse(DataConfig, plain["data"], "data")


def finetuning(start: Start, config: DataConfig, root: Root, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the plain recipe that `plan_finetuning` describes, without its `init`."""
    backbone = backbone_of(start)
    preprocess, convolutional = backbone.preprocess, backbone.convolutional
    size = preprocess.input_size
    images = len(open_dataset(config, "train", root))
    epochs = min(max(-(-_STEPS * _FINETUNING_BATCH // images), _FINETUNING_EPOCHS[0]), _FINETUNING_EPOCHS[1])
    epochs = asked(overrides, "training.epochs", epochs)
    batch = asked(overrides, "training.batch_size", min(_FINETUNING_BATCH, images))
    words, name = words_and_name(config, root, f"{backbone.arch}.finetuned_")
    crop: dict[str, Any] = {"op": "pad_crop", "size": size, "padding": size // 8}
    if size > SMALL:
        crop = {"op": "random_resized_crop", "size": size}
    return {
        "name": name,
        "description": f"Cross-entropy on {words}, started from {start.told}; a recipe made for the release.",
        "backbone": backbone.section,
        "data": _data(config, preprocess),
        "views": _views(config.source, preprocess, [[crop, *_mirrored(config.source)]]),
        "objective": {"name": "classify"},
        "optimizer": {
            "name": "momentum" if convolutional else "adamw",
            "lr": 0.03 if convolutional else 5e-4,
            "weight_decay": 1e-4 if convolutional else 0.05,
            "decay_norm_and_bias": convolutional,
            "layer_decay": None if convolutional or not backbone.layered else 0.75,
        },
        "schedule": {"name": "cosine", "warmup_epochs": epochs // 10},
        "training": _training(
            backbone,
            epochs=epochs,
            batch_size=batch,
            drop_last=images % batch == 1,  # BatchNorm needs two images
            checkpoint_every=max(1, epochs // 4),
        ),
        "evaluation": ["classifier"],
    }


def pretraining(
    objective: MadeFor,
    backbone: Backbone,
    told: str,
    config: DataConfig,
    root: Root,
    train_set: ImageDataset,
    overrides: Sequence[str],
    *,
    started: bool,
) -> dict[str, Any]:
    """Return the plain recipe that `plan_own_pretraining` describes, without its `init`."""
    images, convolutional = len(train_set), backbone.convolutional
    epochs = asked(overrides, "training.epochs", epochs_for(images))
    batch = asked(overrides, "training.batch_size", batch_for(images))
    title, tag = TITLES[objective]
    words, name = words_and_name(config, root, f"{backbone.arch}.{tag}_")
    views = [_view(config, backbone.preprocess.input_size) for _ in range(2)]
    rate = (0.3 if convolutional else 5e-4) * (0.1 if started else 1.0) * batch / _BATCH
    training = _training(
        backbone,
        epochs=epochs,
        batch_size=batch,
        drop_last=batch <= images,
        checkpoint_every=max(1, epochs // _LOOKS),
    )
    return {
        "name": name,
        "description": f"{title} on {words}, without labels, {told}; a recipe made for these images.",
        "backbone": backbone.section,
        "data": _data(config, backbone.preprocess),
        "views": _views(config.source, backbone.preprocess, views),
        "objective": _objective(objective, images, batch),
        "optimizer": {
            "name": "momentum" if convolutional else "adamw",
            "lr": float(f"{rate:.4g}"),
            "weight_decay": 1e-4 if convolutional else 0.05,
            "decay_norm_and_bias": convolutional,
        },
        "schedule": {"name": "cosine", "warmup_epochs": min(10, epochs // 10)},
        "training": training
        | {
            "sync_batchnorm": objective == "simclr",
            "knn_every": max(1, epochs // _LOOKS) if has_classes(train_set) else None,
        },
        "evaluation": _protocols(config, root, train_set),
    }


def has_classes(train_set: ImageDataset) -> bool:
    """Whether neighbours can be asked for them: there are several, and of one at least two images."""
    counts = train_set.class_counts
    return train_set.num_classes > 1 and bool((counts > 1).any())


def asked(overrides: Sequence[str], key: str, otherwise: int) -> int:
    """Return the positive number that an override asks for; any other value is the schema's to refuse."""
    value = value_of(overrides, key)
    return value if type(value) is int and value > 0 else otherwise


def _data(config: DataConfig, preprocess: Preprocess) -> dict[str, Any]:
    """Return these images, in numbers as the backbone takes them."""
    size = preprocess.input_size
    return config.model_dump(mode="json") | {
        "partial_labels": None,
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "image_size": size if size <= SMALL else None,
    }


def _mirrored(source: Source) -> list[str]:
    """Return the operation that mirrors every other image, where a mirror image shows the same."""
    return [] if isinstance(source, Digits) else ["horizontal_flip"]


def _views(source: Source, preprocess: Preprocess, train: list[list[Any]]) -> dict[str, Any]:
    size = preprocess.input_size
    small, decoded = size <= SMALL, isinstance(source, Digits | TorchvisionSource | Memory)
    return {
        "backend": "tensor" if small else "stream",
        "workers": 0 if decoded and small else _WORKERS,
        "train": train,
        "eval": {
            "size": size,
            "crop_pct": preprocess.crop_pct,
            "interpolation": preprocess.interpolation,
        },
    }


def _training(backbone: Backbone, **settings: Any) -> dict[str, Any]:
    return {
        **settings,
        "channels_last": backbone.convolutional,
        "clip_grad": None if backbone.convolutional else 1.0,
        "observe_every": 20,
        "log_every": 10,
    }


def epochs_for(images: int) -> int:
    """Return the epochs of a pretraining on so many images."""
    return max(_FEWEST, min(_EPOCHS, _SEEN // images))


def batch_for(images: int) -> int:
    """Return the images of a step of a pretraining on so many images."""
    if images < _SMALLEST:
        return images
    power = 1 << max(0, (images // _STEPS_OF_EPOCH).bit_length() - 1)
    return min(_BATCH, max(_SMALLEST, power))


def _view(config: DataConfig, size: int) -> list[Any]:
    """Return a view of MoCo v2's, `--aug-plus` in https://github.com/facebookresearch/moco, for this size."""
    view: list[Any] = [{"op": "random_resized_crop", "size": size}, "color_jitter", "grayscale"]
    if size > SMALL:  # below, it would be half a pixel
        widest = float(f"{2.0 * size / 224:.3g}")
        kernel = 2 * (size // 20) + 1  # a tenth of a side, as SimCLR has it: 23 of 224
        view.append({"op": "gaussian_blur", "sigma": [widest / 20, widest], "kernel_size": kernel})
    return [*view, *_mirrored(config.source)]


def _objective(objective: MadeFor, images: int, batch: int) -> dict[str, Any]:
    if objective == "simclr":
        return {"name": "simclr", "tau": 0.2}
    return {
        "name": "moco",
        "head_batchnorm": True,
        "queue_size": max(batch, min(_QUEUE, images // _PART) // batch * batch),
        "momentum": {"kind": "cosine", "start": 0.99, "end": 0.999},  # short trainings need the faster start
        "key_groups": max(2, batch // _GROUP) if batch >= 4 else 1,
    }


def _protocols(config: DataConfig, root: Root, train_set: ImageDataset) -> list[str]:
    """Return what can be measured: without classes, or images to test on, nothing."""
    if not has_classes(train_set) or bool((train_set.labels < 0).any()):
        return []
    try:
        open_dataset(config, "test", root)
    except DataError:  # said once more, as a warning, when the training begins
        return []
    return ["linear", "knn"]
