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


def as_overrides(overrides: Overrides) -> list[str]:
    """Return the changes as `a.b=c` texts.

    Raises:
        RecipeError: for a value that no recipe can have.
    """
    if isinstance(overrides, Mapping):
        return [override_of(key, value) for key, value in overrides.items()]
    return [str(each) for each in ([overrides] if isinstance(overrides, str) else overrides)]


def override_of(key: str, value: Any, where: str = "overrides: ") -> str:
    """Return the text that sets a key to a plain value, a NumPy scalar or a path.

    Raises:
        RecipeError: starting with `where`, for a value that no recipe can have.
    """
    try:
        plain = json.dumps(value, default=lambda x: x.item() if hasattr(x, "item") else os.fspath(x))
    except TypeError:
        raise RecipeError(f'{where}"{key}": found {value!r}, expected a plain value as in a recipe') from None
    return f"{key}={plain}"


def value_of(overrides: Iterable[str], key: str, otherwise: ValueT) -> ValueT:
    """Return the value in the last override of a key; `otherwise` if none, 0 or of another type."""
    found = [text for path, _, text in (each.partition("=") for each in overrides) if path.strip() == key]
    value = load_yaml(found[-1], f'--set "{key}={found[-1]}"') if found else None
    return value if value and type(value) is type(otherwise) else otherwise


def apply(data: dict[str, Any], override: str, where: str) -> None:
    """Set one `a.b=c` in plain data; the value is read as YAML. The schema checks keys and values later.

    Raises:
        RecipeError: naming the part of the key that does not exist.
    """
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise RecipeError(f'--set "{override}": expected KEY.KEY=VALUE, e.g. objective.tau=0.1')
    value = load_yaml(text, f'--set "{override}"')
    node: Any = data
    for depth, key in enumerate(keys):
        slot: Any = int(key) if isinstance(node, list) and key.isdigit() else key
        if not (isinstance(node, dict) or (isinstance(node, list) and slot in range(len(node)))):
            at = ".".join(keys[:depth])
            whole = f"; to set its keys, give it whole: {at}={{...}}" if isinstance(node, str) else ""
            raise RecipeError(f'{where}: --set "{at}.{key}": "{at}" is {node!r} and has no such key{whole}')
        if depth == len(keys) - 1:
            node[slot] = value
        elif isinstance(node, dict) and node.get(slot) is None:
            node[slot] = {}  # a section that is null or missing
        node = node[slot]


def keys_learned(overrides: Iterable[str]) -> list[str]:
    """Return the keys of overrides that can change what is learned."""
    keys = dict.fromkeys(each.partition("=")[0].strip() for each in overrides)
    return [key for key in keys if not f"{key}.".startswith(_NOT_LEARNED)]
