"""How a file's own words are shown: never as they are, since a terminal obeys some of them."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 200  # characters of one name


def shown(name: object) -> str:
    """Return a name from a file with everything escaped that is not printable, cut at 200 characters."""
    text = str(name)
    if not text.isprintable():
        text = "".join(map(_escaped, text[:_LONGEST])) + text[_LONGEST:]
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def summary(keys: Iterable[object], limit: int = 10) -> str:
    """List all keys as `shown`; where they are many, by their first components with counts.

    `layer4.0.conv1.weight, layer4.0.bn1.weight, ...` becomes `layer4.* (60)`.
    """
    every = [shown(key) for key in keys]
    names = every
    for depth in (4, 3, 2, 1):
        if len(names) <= limit:
            break
        names = _grouped(every, depth)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def _grouped(keys: list[str], depth: int) -> list[str]:
    groups: dict[str, list[str]] = {}
    for key in keys:
        parts = key.split(".")
        name = ".".join(parts[:depth]) + ".*" if len(parts) > depth else key
        groups.setdefault(name, []).append(key)
    return [f"{name} ({len(found)})" if len(found) > 1 else found[0] for name, found in groups.items()]
