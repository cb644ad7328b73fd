"""What may be asked for when a release is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from zoo.errors import ReleaseError

# Of timm's factory and builder: where other weights come from, and what the release says itself.
_DECIDED = frozenset(
    {
        *("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_filter_fn"),
        *("pretrained_model_args", "pretrained_strict", "kwargs_filter"),
        *("arch", "model_cfg", "model_cls", "model_name", "pruned", "variant"),
    }
)


def check_request(
    config: Mapping[str, Any],
    *,
    num_classes: int,
    head: str | None,
    model_kwargs: Mapping[str, Any],
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> None:
    """Make sure that a release of this `config` can be loaded as asked for; the arguments are `zoo.load`'s.

    Raises:
        ReleaseError: naming the argument, what was found and what was expected.
    """
    name = config["zoo"]["name"]
    _check_arguments(config, model_kwargs)
    if head not in (None, "centers"):
        raise ReleaseError(f'head: found {head!r}, expected None or "centers"')
    if head and num_classes:
        raise ReleaseError(f'give num_classes={num_classes} for a fresh head or head="centers", not both')
    if model_kwargs.get("features_only") and (head or num_classes):
        raise ReleaseError(
            "features_only=True gives feature maps without a head; leave head and num_classes out"
        )
    if isinstance(num_classes, bool) or not isinstance(num_classes, int):
        raise ReleaseError(f"num_classes: found {num_classes!r}, expected a whole number")
    if device is not None:
        _check_device(device)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ReleaseError(f"dtype: found {dtype!r}, expected a floating-point type, e.g. torch.float16")
    if num_classes < 0:
        raise ReleaseError(f"num_classes: found {num_classes}, expected 0 or more")
    if head and not config["zoo"]["has_centers"]:
        raise ReleaseError(f"{name} has no centers: its objective learned none. Use num_classes=N")
    if head and not config["num_classes"]:
        raise ReleaseError(
            f"{name}: the classifier of {config['architecture']} is not one linear layer, so"
            " the centers are no head for it; zoo.open(...).centers has them"
        )


def _check_arguments(config: Mapping[str, Any], model_kwargs: Mapping[str, Any]) -> None:
    name, arch = config["zoo"]["name"], config["architecture"]
    if "pretrained" in model_kwargs:
        arguments = ", ".join(f"{key}={value!r}" for key, value in config["model_args"].items())
        raise ReleaseError(
            f"pretrained: found {model_kwargs['pretrained']!r}, but a release is loaded with its weights: "
            "leave it out. The same architecture with random weights is "
            f'timm.create_model("{arch}", num_classes=0{", " * bool(arguments)}{arguments})'
        )
    if decided := sorted(_DECIDED & model_kwargs.keys()):
        raise ReleaseError(
            f"{decided[0]}: weights and architecture are those of {name}, expected arguments of {arch}, e.g. "
            "drop_rate=0.1. Weights of others become a release by zoo.convert(FILE, ...)"
        )


def _check_device(device: torch.device | str) -> None:
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise ReleaseError(f'device: found {device!r}, expected e.g. "cpu" or "cuda:0"') from None
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:  # an accelerator that is not here, or torch lacks
        reason = (str(error).splitlines() or ["no reason"])[0]
        raise ReleaseError(f'device: found "{device}", which torch cannot use here: {reason}') from None
