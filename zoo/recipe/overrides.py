"""Changes to a recipe's values, `a.b=c`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.config import leaves, load_yaml
from zoo.errors import RecipeError

COMPUTATION = frozenset(
    {
        "description",
        "evaluation",  # what is measured after the training changes nothing of it
        "views.workers",
        "views.cache",
        *(
            f"training.{key}"
            for key in (
                "compile",
                "device",
                "threads",
                "precision",
                "channels_last",
                "observe_every",
                "knn_every",
                "log_every",
                "checkpoint_every",
                "checkpoint_minutes",
                "keep_checkpoints",
                "release_dtype",
                "trackers",
            )
        ),
    }
)
"""Keys that decide where, how fast and how exactly the same mathematics is computed, or what comes after."""

_UNSAID = tuple(f"{key}." for key in (*COMPUTATION, "name", "training.seed", "data.source.download"))

Overrides = Sequence[str] | Mapping[str, Any]
"""`["training.epochs=1"]`, each value read as YAML, or `{"training.epochs": 1}`."""


def as_overrides(overrides: Overrides) -> list[str]:
    """Return the changes as `a.b=c` texts.

    Raises:
        RecipeError: for what is neither, or a value that no recipe can have.
    """
    if isinstance(overrides, Mapping):
        return [override_of(key, value, "overrides: ") for key, value in overrides.items()]
    listed = isinstance(overrides, list | tuple) and all(isinstance(each, str) for each in overrides)
    if not listed:
        raise RecipeError(
            f'overrides: found {overrides!r}, expected a list of "KEY.KEY=VALUE", e.g. '
            '["training.epochs=1"], or a mapping, e.g. {"training.epochs": 1}'
        )
    return [*overrides]


def override_of(key: str, value: Any, where: str = "") -> str:
    """Return the text that sets a key to a plain value.

    Raises:
        RecipeError: beginning with `where`, for a value that no recipe can have.
    """
    try:
        return f"{key}={json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)}"
    except (TypeError, ValueError):
        raise RecipeError(f'{where}"{key}": found {value!r}, expected a plain value as in a recipe') from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError


def value_of(overrides: Iterable[str], key: str) -> Any:
    """Return the value that the last override of this very key sets; None where none does."""
    found = [text for path, _, text in (each.partition("=") for each in overrides) if path.strip() == key]
    return load_yaml(found[-1], f'--set "{key}={found[-1]}"') if found else None


def apply(data: dict[str, Any], override: str, where: str) -> None:
    """Set one `a.b=c` in plain data; the value is read as YAML. The schema checks keys and values later.

    Raises:
        RecipeError: naming the part of the key that is not there.
    """
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise RecipeError(f'--set "{override}": expected KEY.KEY=VALUE, e.g. objective.tau=0.1')
    value = load_yaml(text, f'--set "{override}"')
    node: Any = data
    for depth, key in enumerate(keys, 1):
        here, slot = ".".join(keys[:depth]), key if isinstance(node, dict) else int(key)
        if depth == len(keys):
            node[slot] = value
            return
        if isinstance(node, dict) and node.get(key) is None:
            node[key] = {}  # a section that is off, or left to its defaults
        node, after = node[slot], keys[depth]
        if isinstance(node, list) and not (after.isdigit() and int(after) < len(node)):
            raise RecipeError(f'{where}: --set "{here}.{after}": expected an index below {len(node)}')
        if not isinstance(node, dict | list):
            raise RecipeError(
                f'{where}: --set "{here}.{after}": "{here}" is {node!r} and has no keys; '
                f"give it whole: --set '{here}={{{after}: ..., ...}}'"
            )


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any], overrides: Iterable[str]) -> list[str]:
    """Return the keys of those overrides that change what is learned.

    Args:
        before: the plain recipe without them.
        now: the plain recipe with them.
        overrides: `a.b=c`.
    """
    earlier, later = dict(leaves(before)), dict(leaves(now))
    differing = [f"{key}." for key in {**earlier, **later} if earlier.get(key) != later.get(key)]
    set_keys = dict.fromkeys(each.partition("=")[0].strip() for each in overrides)
    return [
        key
        for key in set_keys
        if not f"{key}.".startswith(_UNSAID)
        and any(each.startswith(f"{key}.") or f"{key}.".startswith(each) for each in differing)
    ]
