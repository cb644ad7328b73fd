"""A model that is handed over to be measured: what it is below its wrappers, and what its images are."""

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

_IMAGENET_CLASSES = {1000, 21841, 21843}  # no projection has as many outputs by chance
_IMAGENET = {"input_size": (3, 224, 224)}  # the rest is timm's default: bicubic, 0.875, ImageNet's mean, std


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside of what `torch.compile`, `DataParallel` and `DistributedDataParallel` made."""
    while hasattr(model, "_orig_mod") or isinstance(
        model, nn.DataParallel | nn.parallel.DistributedDataParallel
    ):
        inner: Any = model
        model = inner._orig_mod if hasattr(inner, "_orig_mod") else inner.module
    return model


def preprocess_of(model: nn.Module, given: Preprocess | Mapping[str, Any] | None) -> Preprocess:
    """Return how images become the input of `model`: as given, else as its `pretrained_cfg` says.

    A model without one gets timm's default, ImageNet's, with a warning.

    Raises:
        ZooError: for what is no `Preprocess`, naming the field.
    """
    where, plain = "preprocess", asdict(given) if isinstance(given, Preprocess) else given
    if plain is None:
        known, where = getattr(model, "pretrained_cfg", None), "model: pretrained_cfg"
        try:
            plain = resolve_data_config(pretrained_cfg=known or _IMAGENET)
            size = backbones.size_built_for(model) or plain["input_size"][-1]
        except (TypeError, AttributeError, KeyError, IndexError) as error:  # made by hand
            raise ZooError(f"{where}: none of timm's ({error}); give preprocess=") from None
        plain = {key: plain[key] for key in Input.model_fields if key in plain} | {"input_size": size}
        if not known:
            told = f'model: {type(model).__name__} has no "pretrained_cfg", so its images are made as'
            warnings.warn(f"{told} ImageNet's, {plain}; else give preprocess=", ZooWarning, stacklevel=4)
    if isinstance(plain, Mapping):
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}
    fields = parse(Input, plain, where, ZooError)
    mean, std = tuple(fields.mean), tuple(fields.std)
    return Preprocess(fields.input_size, fields.crop_pct, fields.interpolation, mean, std)


def check_encoder(model: nn.Module, size: int) -> None:
    """Make sure that `model` maps images `[B, 3, size, size]` to features, not to the scores of classes.

    Raises:
        ZooError: for other images than it takes; for timm's classifier anywhere in it; and for a last linear
            layer with as many outputs as ImageNet has classes.
    """
    output = backbones.check_input(model, size)
    width = output.shape[1] if isinstance(output, Tensor) and output.ndim == 2 else None
    advice, modules = "", list(model.named_modules())
    for path, module in modules:
        timms: Any = module if hasattr(module, "reset_classifier") else None
        if timms is None or timms.num_classes != width or isinstance(timms.get_classifier(), nn.Identity):
            continue
        inside = f"model.get_submodule({path!r})." if path else ""
        advice = f"build it with num_classes=0, or call {inside}reset_classifier(0)"
    last, layer = modules[-1]
    if isinstance(layer, nn.Linear) and width == layer.out_features and width in _IMAGENET_CLASSES:
        advice = advice or f'put torch.nn.Identity() in the place of its last layer "{last}"'
    if advice:
        raise ZooError(f"model: found a classifier with {width} outputs, expected an encoder: {advice}")
