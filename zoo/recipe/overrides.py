"""Changes to a recipe's values, `a.b=c`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from zoo.config import load_yaml
from zoo.errors import RecipeError

PLAIN: tuple[str, ...] = ("objective.loss=cross_entropy", "objective.head=linear", "objective.scale=null")
PLAIN += ("training.sampling=instance",)
"""The common setting in which long-tailed methods are compared."""
_TRAINING = ["compile", "device", "threads", "precision", "channels_last", "observe_every", "knn_every"]
_TRAINING += ["log_every", "checkpoint_every", "checkpoint_minutes", "keep_checkpoints", "release_dtype"]
_TRAINING += ["trackers"]
COMPUTATION = frozenset(
    ("description", "evaluation", "views.workers", "views.cache", *(f"training.{key}" for key in _TRAINING))
)
"""Keys that only affect where, how fast and how precisely a training is computed, or what follows it."""
_NOT_LEARNED = tuple(f"{key}." for key in (*COMPUTATION, "name", "training.seed", "data.source.download"))

ValueT = TypeVar("ValueT")
Overrides = Sequence[str] | Mapping[str, Any]
"""`["training.epochs=1"]`, each value read as YAML, or `{"training.epochs": 1}`."""


def as_overrides(overrides: Overrides, where: str = "overrides: ") -> dict[str, Any]:
    """Return the changes as plain values by dotted key; of several for one key the last counts.

    Raises:
        RecipeError: for a text that is not `a.b=c`, or starting with `where`, for a value no recipe can have.
    """
    if isinstance(overrides, Mapping):
        return {key: _plain(value, f'{where}"{key}"') for key, value in overrides.items()}
    changes = dict[str, Any]()
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise RecipeError(f'--set "{text}": expected KEY.KEY=VALUE, e.g. objective.tau=0.1')
        changes[key.strip()] = load_yaml(value, f'--set "{text}"')
    return changes


def _plain(value: Any, where: str) -> Any:
    """Return NumPy scalars and paths, at any depth, as a recipe has them."""
    try:
        return json.loads(
            json.dumps(value, default=lambda x: x.item() if hasattr(x, "item") else os.fspath(x))
        )
    except TypeError:
        raise RecipeError(f"{where}: found {value!r}, expected a plain value as in a recipe") from None


def value_of(changes: Mapping[str, Any], key: str, otherwise: ValueT) -> ValueT:
    """Return the changed value of a key; `otherwise` if it is not changed, 0 or of another type."""
    value = changes.get(key)
    return value if value and type(value) is type(otherwise) else otherwise


def apply(data: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set a dotted key of plain data. The schema checks keys and values later.

    Raises:
        RecipeError: naming the part of the key that does not exist.
    """
    keys = key.split(".")
    node: Any = data
    for depth, part in enumerate(keys):
        slot: Any = int(part) if isinstance(node, list) and part.isdigit() else part
        if not (isinstance(node, dict) or (isinstance(node, list) and slot in range(len(node)))):
            at = ".".join(keys[:depth])
            whole = f"; to set its keys, give it whole: {at}={{...}}" if isinstance(node, str) else ""
            raise RecipeError(f'{where}: --set "{at}.{part}": "{at}" is {node!r} and has no such key{whole}')
        if depth == len(keys) - 1:
            node[slot] = value
        elif isinstance(node, dict) and node.get(slot) is None:
            node[slot] = {}  # a section that is null or missing
        node = node[slot]


def keys_learned(keys: Iterable[str]) -> list[str]:
    """Return the keys that can change what is learned."""
    return [key for key in keys if not f"{key}.".startswith(_NOT_LEARNED)]
