"""What may be asked for when a release is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from zoo.errors import ReleaseError


def check_request(
    config: Mapping[str, Any],
    *,
    num_classes: int,
    head: str | None,
    features_only: bool,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> None:
    """Make sure that a release of this `config` can be loaded as asked for; the arguments are `zoo.load`'s.

    Raises:
        ReleaseError: naming the argument, what was found and what was expected.
    """
    name = config["zoo"]["name"]
    if head not in (None, "centers"):
        raise ReleaseError(f'head: found {head!r}, expected None or "centers"')
    if head and num_classes:
        raise ReleaseError(f'give num_classes={num_classes} for a fresh head or head="centers", not both')
    if features_only and (head or num_classes):
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
