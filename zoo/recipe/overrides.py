"""Changes to a recipe's values, and what a recipe with changes says of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.config import load_yaml, yaml_in_line
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
                "accumulate",
                "checkpoint_activations",
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
_LONGEST = 40  # characters of a value that a description repeats
_PLACE = re.compile(r"[/\\~]")  # a folder's path is its owner's business

Overrides = Sequence[str] | Mapping[str, Any]
"""`["training.epochs=1"]`, each value read as YAML, or `{"training.epochs": 1}`."""


def as_overrides(overrides: Overrides) -> list[str]:
    """Return the changes as `a.b=c` texts.

    Raises:
        RecipeError: for what is neither, or a value that no recipe can have.
    """
    given: Any = overrides  # what callers without a type checker give
    if isinstance(given, Mapping):
        return [override_of(key, value, "overrides: ") for key, value in given.items()]
    if isinstance(given, str):
        found = f'the text "{given}"'
    elif not isinstance(given, Iterable):
        found = repr(given)
    else:
        listed = list(given)
        wrong = [each for each in listed if not isinstance(each, str)]
        if not wrong:
            return listed
        found = f"{wrong[0]!r} in the list"
    raise RecipeError(
        f'overrides: found {found}, expected a list of "KEY.KEY=VALUE", e.g. ["training.epochs=1"], or a '
        'mapping, e.g. {"training.epochs": 1}'
    )


def override_of(key: str, value: Any, where: str) -> str:
    """Return the text that sets a key to a plain value.

    Raises:
        RecipeError: beginning with `where`, for a value that no recipe can have.
    """
    try:
        return f"{key}={json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)}"
    except (TypeError, ValueError):
        raise RecipeError(f'{where}"{key}": found {value!r}, expected a plain value as in a recipe') from None


def _plain(value: Any) -> Any:
    """Return a number of NumPy's or a path as YAML has it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.floating):
        return float(str(value))  # the shortest digits that mean it: 0.1 of a float32, not 0.10000000149
    if isinstance(value, np.integer | np.bool_):
        return value.item()
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
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        here = ".".join(keys[: depth + 1])
        slot: Any = key
        if isinstance(node, list):
            if not key.isdigit() or int(key) >= len(node):
                raise RecipeError(f'{where}: --set "{here}": expected an index below {len(node)}')
            slot = int(key)
        elif not isinstance(node, dict):
            raise RecipeError(
                f'{where}: --set "{here}": "{".".join(keys[:depth])}" is {node!r} and has no keys; '
                f"give it whole: --set '{'.'.join(keys[:depth])}={{{key}: ..., ...}}'"
            )
        if last:
            node[slot] = value
        else:
            if isinstance(node, dict) and node.get(key) is None:
                node[key] = {}  # a section that is off, or left to its defaults
            node = node[slot]


def described(before: Mapping[str, Any], now: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Return the description of a recipe with overrides: its own, and those that change what is learned.

    Args:
        before: the plain recipe without them.
        now: the plain recipe with them.
        overrides: `a.b=c`.
    """
    own = str(now["description"])
    changed = changes_in_words(before, now, overrides, said=own)
    if not changed or value_of(overrides, "description") is not None:
        return own
    return f"{own.removesuffix('.')}. Changed: {changed}."


def changes_in_words(
    before: Mapping[str, Any], now: Mapping[str, Any], overrides: Sequence[str], *, said: str = ""
) -> str:
    """Return the overrides that change what is learned, `objective.tau=0.1, training.epochs=5`; "" for none.

    Args:
        before: the plain recipe without them.
        now: the plain recipe with them.
        overrides: `a.b=c`.
        said: where some of them may be named already.
    """
    words: dict[str, str] = {}
    for override in overrides:
        key, _, text = override.partition("=")
        key = key.strip()
        if f"{key}.".startswith(_UNSAID) or _at(before, key) == _at(now, key):
            continue
        value = yaml_in_line(load_yaml(text, override))
        short = len(value) <= _LONGEST and value.isprintable() and not _PLACE.search(value)
        words[key] = f"{key}={value}" if short else f"another {key}"
    return ", ".join(word for word in words.values() if word not in said)


def _at(plain: Any, key: str) -> Any:
    """Return what is at `a.b.0` of nested plain data; None where that is not there."""
    for part in key.split("."):
        if isinstance(plain, list) and part.isdigit() and int(part) < len(plain):
            plain = plain[int(part)]
        else:
            plain = plain.get(part) if isinstance(plain, Mapping) else None
    return plain
