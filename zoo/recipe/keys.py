"""The reference of a recipe's keys, read from the JSON schema and the texts below its fields."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from zoo.errors import RecipeError, did_you_mean
from zoo.recipe.recipe import Recipe

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minItems", "maxItems")


class Key(NamedTuple):
    """A key of a recipe, or one of several sections that may stand at one.

    Attributes:
        name: with the words that choose sections, `objective.paco.tau`.
        path: as `--set` takes it, `objective.tau`; N stands for a place in a list.
        kind: its type in JSON schema's words; empty for one of several sections.
        default: as JSON; None where a recipe has to state it.
        text: what it means.
        inside: the keys of a section, or the sections that may stand there.
    """

    name: str
    path: str
    kind: str
    default: str | None
    text: str
    inside: tuple[Key, ...]


def find_keys(name: str = "") -> list[Key]:
    """Return the keys and sections of a name, by default those at the top of a recipe.

    Args:
        name: a path, or its end: `objective.paco`, `paco`, `training.epochs`; for `lr` all that end so.

    Raises:
        RecipeError: for anything else, with the nearest name.
    """
    sought = name.strip().strip(".")
    if not sought:
        return [*_top()]
    known = [key for top in _top() for key in _with_all_inside(top)]
    found = [
        key for key in known if f".{key.name}".endswith(f".{sought}") or (key.kind and key.path == sought)
    ]
    if not found:
        words = [word for key in known for word in (key.name, key.path, key.name.rpartition(".")[2])]
        raise RecipeError(
            f'keys: found "{name}", expected a section or a key of a recipe.{did_you_mean(sought, words)} '
            '"zoo show keys" shows the sections'
        )
    found = [*{key[1:-1]: key for key in reversed(found)}.values()][::-1]  # objectives share many
    paths = Counter(key.path for key in found)
    return [key if paths[key.path] == 1 else key._replace(path=key.name) for key in found]


def _with_all_inside(key: Key) -> Iterator[Key]:
    yield key
    for each in key.inside:
        yield from _with_all_inside(each)


@functools.cache
def _top() -> tuple[Key, ...]:
    schema = Recipe.model_json_schema()
    return _keys_of(schema, "", "", schema["$defs"])


def _keys_of(section: dict[str, Any], name: str, path: str, defs: dict[str, Any]) -> tuple[Key, ...]:
    found = []
    for field, facts in section["properties"].items():
        own, here = f"{name}{field}", f"{path}{field}"
        place = f"{here}.N." if facts.get("type") == "array" else f"{here}."
        sections = {word: defs[ref.rpartition("/")[2]] for word, ref in _sections(facts)}
        text, inside = facts.get("description", "Which one it is."), list[Key]()
        for word, each in sections.items():
            about = " ".join(each["description"].split())
            if word:
                keys = _keys_of(each, f"{own}.{word}.", place, defs)
                inside.append(Key(f"{own}.{word}", here, "", None, about, keys))
            else:  # the only one that may stand here
                text = facts.get("description", about)
                inside += _keys_of(each, f"{own}.", place, defs)
        default = json.dumps(facts["default"]) if "default" in facts else None
        found.append(Key(own, here, _kind(facts), default, " ".join(text.split()), tuple(inside)))
    return tuple(found)


def _sections(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the sections that may stand at a key, each with the word that chooses it of several."""
    if "discriminator" in facts:
        yield from facts["discriminator"]["mapping"].items()
    elif "$ref" in facts:
        yield "", facts["$ref"]
    else:
        several = [*facts.get("anyOf", ()), *facts.get("oneOf", ())]
        for inner in [*several, facts["items"]] if "items" in facts else several:
            yield from _sections(inner)


def _kind(facts: dict[str, Any]) -> str:
    """Return a type in words, `integer, minimum 1 or null`."""
    if "$ref" in facts or "discriminator" in facts:
        return "section"
    if several := facts.get("anyOf") or facts.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_kind, several)))
    if "enum" in facts or "const" in facts:
        return ", ".join(map(str, facts.get("enum", [facts.get("const")])))
    noun = f"list of {_kind(facts['items'])}" if "items" in facts else facts.get("type", "value")
    return ", ".join([noun, *(f"{bound} {facts[bound]:g}" for bound in _BOUNDS if bound in facts)])
