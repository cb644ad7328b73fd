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
    where, plain = "preprocess", given
    if isinstance(given, Preprocess):
        plain = asdict(given)
    elif given is None:
        known, where = getattr(model, "pretrained_cfg", None), "model: pretrained_cfg"
        try:
            plain = resolve_data_config(pretrained_cfg=known or _IMAGENET)
            size = backbones.size_built_for(model) or plain["input_size"][-1]
        except (TypeError, AttributeError, KeyError, IndexError) as error:  # made by hand
            raise ZooError(f"{where}: none of timm's ({error}); give preprocess=") from None
        plain = {key: plain[key] for key in Input.model_fields if key in plain} | {"input_size": size}
        if not known:
            warnings.warn(
                f'model: {type(model).__name__} has no "pretrained_cfg" that says how its images are made: '
                f"ImageNet's is taken: {plain}. Another one: preprocess={{...}} with these fields",
                ZooWarning,
                stacklevel=4,
            )
    if isinstance(plain, Mapping):
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}
    fields = parse(Input, plain, where, ZooError)
    mean, std = tuple(fields.mean), tuple(fields.std)
    return Preprocess(fields.input_size, fields.crop_pct, fields.interpolation, mean, std)


def check_encoder(model: nn.Module, size: int) -> None:
    """Make sure that `model` maps images `[B, 3, size, size]` to features, not to the scores of classes.

    Raises:
        ZooError: for other images than it takes, and for a classifier, with what takes that off.
    """
    output = backbones.check_input(model, size)
    width = output.shape[1] if isinstance(output, Tensor) and output.ndim == 2 else None
    for path, module in model.named_modules():
        timms: Any = module if hasattr(module, "reset_classifier") else None
        if timms is None or timms.num_classes != width or isinstance(timms.get_classifier(), nn.Identity):
            continue
        inside = f"model.get_submodule({path!r})." if path else ""
        raise ZooError(
            f"model: found a classifier with {width} outputs, expected an encoder: build it with "
            f"num_classes=0, or call {inside}reset_classifier(0)"
        )
    path, last = [*model.named_modules()][-1]
    if isinstance(last, nn.Linear) and last.out_features == width and _HEADS & {*path.split(".")[:2]}:
        advice = f'put torch.nn.Identity() in the place of its last layer "{path}"'
        if width in _KNOWN_CLASSES:
            raise ZooError(f"model: found a classifier with {width} outputs, expected an encoder: {advice}")
        # whoever calls a projection so may mean it
        told = (
            f"model: its last layer's {width} outputs are measured; if they are scores of classes, {advice}"
        )
        warnings.warn(told, ZooWarning, stacklevel=4)


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
