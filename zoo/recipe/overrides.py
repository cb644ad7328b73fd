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
Changes = list[tuple[str, Any]]  # plain values by dotted key, to be set in this order
Overrides = Sequence[str | tuple[str, Any]] | Mapping[str, Any]
"""`["training.epochs=1"]`, each value read as YAML, or `{"training.epochs": 1}`; also `Changes`."""


def as_overrides(overrides: Overrides, where: str = "overrides: ") -> Changes:
    """Return the changes in order.

    Raises:
        RecipeError: for a text that is not `a.b=c`, or starting with `where`, for a value no recipe can have.
    """
    changes = list[tuple[str, Any]]()
    given = overrides.items() if isinstance(overrides, Mapping) else overrides
    for each in [given] if isinstance(given, str) else given:
        whole = each if isinstance(each, tuple) else None
        key, equals, text = (str(whole[0]), "=", str(whole[1])) if whole else str(each).partition("=")
        if not equals or not all(key.strip().split(".")):
            raise RecipeError(f'--set "{key}{equals}{text}": expected KEY.KEY=VALUE, e.g. objective.tau=0.1')
        value = _plain(whole[1], f'{where}"{key}"') if whole else load_yaml(text, f'--set "{each}"')
        changes.append((key.strip(), value))
    return changes


def _plain(value: Any, where: str) -> Any:
    """Return NumPy scalars and paths, at any depth, as a recipe has them."""
    try:
        text = json.dumps(value, default=lambda x: x.item() if hasattr(x, "item") else os.fspath(x))
    except TypeError:
        raise RecipeError(f"{where}: found {value!r}, expected a plain value as in a recipe") from None
    return json.loads(text)


def value_of(changes: Changes, key: str, otherwise: ValueT) -> ValueT:
    """Return a key's last value; `otherwise` if it is not changed, 0 or of another type."""
    value = dict(changes).get(key)
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
