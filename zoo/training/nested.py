"""Tensors in nested dicts, lists and tuples: states, and what a step carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def map_tensors(nested: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return the same structure with each tensor changed, in order; everything else stays as it is."""
    if isinstance(nested, Tensor):
        return change(nested)
    if isinstance(nested, Mapping):
        return {key: map_tensors(value, change) for key, value in nested.items()}
    if isinstance(nested, (list, tuple)):
        values = [map_tensors(value, change) for value in nested]
        return type(nested)(*values) if hasattr(nested, "_fields") else type(nested)(values)
    return nested


def tensors_in(nested: Any) -> list[Tensor]:
    """Return the tensors, in order."""
    found: list[Tensor] = []
    map_tensors(nested, found.append)
    return found
