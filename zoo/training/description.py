"""What a recipe with overrides says of itself: the paragraph in its file is of the values without them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.config import load_yaml, yaml_in_line
from zoo.training.changes import ALLOWED, differences

_UNSAID = tuple(f"{key}." for key in (*ALLOWED, "name", "training.seed", "data.source.download"))
_WEIGHTIEST = ("objective", "method", "data", "init", "backbone")  # named first, and always
_MOST, _LONGEST = 5, 40  # changes that are named where some are of other sections, and characters of a value
_PLACE = re.compile(r"[/\\~]")  # a folder's path is its owner's business
_MADE = re.compile(
    r"The recipe \S+(?: with | on |, started from )|.*; a recipe made for (?:the release|these images)"
)


def described(before: Mapping[str, Any], now: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Return a description that is true of a recipe with overrides.

    It is the recipe's own where they change nothing of what is learned, or are a description. One that was
    made for a recipe with changes, or with another start, is only added to.

    Args:
        before: the plain recipe without them.
        now: the plain recipe with them.
        overrides: `a.b=c`.
    """
    own = str(now["description"])
    changed = changes_in_words(before, now, overrides, said=own)
    if not changed or any(_key(each) == "description" for each in overrides):
        return own
    if _MADE.match(own):
        return f"{own.removesuffix('.')}, with {changed}."
    return f"The recipe {before.get('name', now['name'])} with {changed}."


def changes_in_words(
    before: Mapping[str, Any], now: Mapping[str, Any], overrides: Sequence[str], *, said: str = ""
) -> str:
    """Return the overrides that change what is learned, `objective.tau=0.1, training.epochs=5`; "" for none.

    Those of the objective, data and start come first; of how these are trained, what makes the list long is
    only counted.

    Args:
        before: the plain recipe without them.
        now: the plain recipe with them.
        overrides: `a.b=c`.
        said: where some of them may be named already.
    """
    differing = [f"{change.key}." for change in differences(before, now)]
    differing = [key for key in differing if not key.startswith(_UNSAID)]
    values = {_key(each): load_yaml(each.partition("=")[2], each) for each in overrides}
    words = {
        key: _words(key, value)
        for key, value in values.items()
        if any(each.startswith(f"{key}.") or f"{key}.".startswith(each) for each in differing)
    }
    words = {key: each for key, each in words.items() if each not in said}
    first = sorted(filter(_is_weighty, words), key=lambda key: _WEIGHTIEST.index(_section(key)))
    rest = [key for key in words if key not in first]
    named = [*first, *rest[: max(0, _MOST - len(first))]]
    more = len(words) - len(named)
    told = ", ".join(words[key] for key in named)
    return told + (f" and {more} more" if more else "")


def _section(key: str) -> str:
    return key.partition(".")[0]


def _is_weighty(key: str) -> bool:
    return _section(key) in _WEIGHTIEST


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _words(key: str, value: Any) -> str:
    text = yaml_in_line(value)
    short = len(text) <= _LONGEST and text.isprintable() and not _PLACE.search(text)
    return f"{key}={text}" if short else f"another {key}"
