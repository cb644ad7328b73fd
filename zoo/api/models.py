"""A model that a user hands over to be measured: what it is below its wrappers, and what its images are."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from timm.data import resolve_data_config
from torch import Tensor, nn

from zoo import backbones
from zoo.config import parse
from zoo.errors import ZooError, ZooWarning
from zoo.release import Preprocess
from zoo.release.schema import Input

_KNOWN_CLASSES = {1000, 21841, 21843}  # ImageNet's: no projection has as many outputs by chance
_HEADS = {"fc", "classifier", "head", "heads"}  # torchvision's names of what stands after the features
_IMAGENET = {"input_size": (3, 224, 224)}  # the rest is timm's default: bicubic, 0.875, ImageNet's mean, std


def unwrapped(model: nn.Module) -> nn.Module:
    """Return what `torch.compile`, `DataParallel` and `DistributedDataParallel` stand around, in any order.

    A wrapper hides what timm keeps at a model, e.g. its `pretrained_cfg`.
    """
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def preprocess_of(model: nn.Module, given: Preprocess | Mapping[str, Any] | None) -> Preprocess:
    """Return how images become the input of `model`: as given, else as its `pretrained_cfg` says.

    A model without one gets timm's default, that of ImageNet, with a warning: a mean or a size of another
    training costs accuracy and shows nowhere else.

    Raises:
        ZooError: for what is no `Preprocess`, naming the field.
    """
    if given is not None:
        return _checked(given)
    known = getattr(model, "pretrained_cfg", None)
    try:
        config = resolve_data_config(pretrained_cfg=known or _IMAGENET)
        size = config["input_size"][-1]
    except (TypeError, AttributeError, KeyError, IndexError) as error:  # another library's, or made by hand
        raise ZooError(f"model: its pretrained_cfg is none of timm's ({error}); give preprocess=") from None
    fields = {key: config[key] for key in ("crop_pct", "interpolation", "mean", "std")}
    taken = _checked(
        {"input_size": backbones.size_built_for(model) or size, **fields}, "model: pretrained_cfg"
    )
    if config["crop_mode"] != "center":
        warnings.warn(
            f'model: its pretrained_cfg has crop_mode "{config["crop_mode"]}"; here images are cropped at '
            "their center, which differs for those that are not square",
            ZooWarning,
            stacklevel=4,
        )
    if not known:
        warnings.warn(
            f'model: {type(model).__name__} has no "pretrained_cfg" that says how its images are made, so '
            f"ImageNet's is taken: {taken}. Another one: preprocess={{...}} with these fields",
            ZooWarning,
            stacklevel=4,
        )
    return taken


def _checked(given: Preprocess | Mapping[str, Any], where: str = "preprocess") -> Preprocess:
    if not isinstance(given, Preprocess | Mapping):
        raise ZooError(
            f"preprocess: found a {type(given).__name__}, expected a zoo.release.Preprocess or a mapping "
            f"with its fields {', '.join(Input.model_fields)}"
        )
    plain = asdict(given) if isinstance(given, Preprocess) else dict(given)
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}
    fields = parse(Input, listed, where, ZooError)
    mean, std = tuple(fields.mean), tuple(fields.std)
    return Preprocess(fields.input_size, fields.crop_pct, fields.interpolation, mean, std)


def check_encoder(model: nn.Module, size: int) -> None:
    """Make sure that `model` maps images `[B, 3, size, size]` to features, not to the scores of classes.

    `num_classes` by itself says little: it stays where somebody took the classifier off by hand. So does the
    name of a last layer, by which a projection of one's own may be called as well: that is warned of.

    Raises:
        ZooError: for other images than it takes, and for a classifier, with what takes that off.
    """
    output = backbones.check_input(model, size)
    width = output.shape[1] if isinstance(output, Tensor) and output.ndim == 2 else None
    advice, last = _timms_classifier(model, width), _without_last(model, width)
    if (
        advice is None
        and not hasattr(model, "reset_classifier")
        and getattr(model, "num_classes", 0) == width
    ):
        advice = last or "hand over a model that ends with the features"
    if advice is None and width in _KNOWN_CLASSES:
        advice = last
    if advice is not None:
        raise ZooError(f"model: found a classifier with {width} outputs, expected an encoder: {advice}")
    if last is not None and not hasattr(model, "reset_classifier"):
        warnings.warn(
            f"model: what its last linear layer makes is measured, {width} numbers; if they are scores of "
            f"classes, {last}",
            ZooWarning,
            stacklevel=4,
        )


def check_classifier(model: nn.Module, size: int) -> int:
    """Make sure that `model` maps images `[B, 3, size, size]` to scores `[B, C]`; return C.

    Whether the scores of a model that is not timm's are of classes, only their number can tell.

    Raises:
        ZooError: for other images than it takes, other outputs, or one of timm's without classifier.
    """
    output = backbones.check_input(model, size)
    if not isinstance(output, Tensor) or output.ndim != 2:
        found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ZooError(f'protocol "classifier": found a model that makes {found}, expected scores [B, C]')
    timms: Any = getattr(model, "get_classifier", None)
    if callable(timms) and isinstance(timms(), nn.Identity):
        raise ZooError(
            f'protocol "classifier": found an encoder without a classifier, {output.shape[1]} features; '
            'expected a model that ends in one, e.g. zoo.load(NAME, head="centers"), or "linear" or "knn"'
        )
    return output.shape[1]


def _timms_classifier(model: nn.Module, width: int | None) -> str | None:
    """Return how to take off the classifier of a timm model, or of one inside of a model; None without."""
    for path, module in model.named_modules():
        classes = getattr(module, "num_classes", None)
        if not (hasattr(module, "reset_classifier") and isinstance(classes, int) and 0 < classes == width):
            continue
        if isinstance(module.get_classifier(), nn.Identity):  # taken off by hand
            continue
        inside = f"model.get_submodule({path!r})." if path else ""
        return f"build it with num_classes=0, or call {inside}reset_classifier(0)"
    return None


def _without_last(model: nn.Module, width: int | None) -> str | None:
    """Return how to take off a last linear layer with torchvision's name for it; None: there is none."""
    path, last = [*model.named_modules()][-1]
    parts = path.split(".")
    if not isinstance(last, nn.Linear) or last.out_features != width or not _HEADS & {*parts[:2]}:
        return None
    place = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)
    return f"take its last layer off, model{place} = torch.nn.Identity()"
