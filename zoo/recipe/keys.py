"""The reference of a recipe's keys, `zoo show KEY`, read from the recipe's JSON schema."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from zoo.errors import RecipeError, did_you_mean
from zoo.recipe.recipe import Recipe

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


class Key(NamedTuple):
    """A key of a recipe, or one of several sections that may stand at one."""

    name: str  # with the words that choose sections, `objective.paco.tau`
    path: str  # as `--set` takes it, `objective.tau`; N stands for a place in a list
    kind: str  # its type in words; empty for one of several sections
    default: str | None  # as JSON; None where a recipe has to state it
    text: str
    inside: tuple[Key, ...]  # the keys of a section, or the sections that may stand there


def find_keys(name: str = "") -> list[Key]:
    """Return the keys and sections whose names end in e.g. `objective.paco` or `lr`; "": those at the top.

    Raises:
        RecipeError: for anything else, with the nearest name.
    """
    sought, known = name.strip().strip("."), [key for top in _top() for key in _walk(top)]
    if not sought:
        return [*_top()]
    ends = f".{sought}"
    found = [key for key in known if f".{key.name}".endswith(ends) or (key.kind and key.path == sought)]
    if not found:
        words = [word for key in known for word in (key.name, key.path, key.name.split(".")[-1])]
        hint = did_you_mean(sought, words)
        raise RecipeError(f'keys: found "{name}", expected a section or a key of a recipe.{hint}')
    found = [*{key[1:-1]: key for key in reversed(found)}.values()][::-1]  # objectives share many
    paths = Counter(key.path for key in found)
    return [key if paths[key.path] == 1 else key._replace(path=key.name) for key in found]


def _walk(key: Key) -> Iterator[Key]:
    yield key
    for each in key.inside:
        yield from _walk(each)


@functools.cache
def _top() -> tuple[Key, ...]:
    schema = Recipe.model_json_schema()
    return _keys_of(schema, "", "", schema["$defs"])


def _keys_of(section: dict[str, Any], name: str, path: str, defs: dict[str, Any]) -> tuple[Key, ...]:
    found = []
    for field, facts in section["properties"].items():
        own, here = f"{name}{field}", f"{path}{field}"
        below = f"{here}.N." if facts.get("type") == "array" else f"{here}."
        kinds, sections = _parts(facts)
        text, inside = facts.get("description", "Which one it is."), list[Key]()
        for word, ref in sections:
            each = defs[ref.rpartition("/")[2]]
            keys = _keys_of(each, f"{own}.{word}." if word else f"{own}.", below, defs)
            about = " ".join(each["description"].split())
            inside += [Key(f"{own}.{word}", here, "", None, about, keys)] if word else keys
            text = text if word else facts.get("description", about)
        default = json.dumps(facts["default"]) if "default" in facts else None
        kind = " or ".join(dict.fromkeys(kinds))
        found.append(Key(own, here, kind, default, " ".join(text.split()), tuple(inside)))
    return tuple(found)


def _parts(facts: dict[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return a key's types, and its sections, each with the word that chooses it of several."""
    if "discriminator" in facts:
        return ["section"], [*facts["discriminator"]["mapping"].items()]
    if "$ref" in facts:
        return ["section"], [("", facts["$ref"])]
    if "items" in facts:
        kinds, sections = _parts(facts["items"])
        return [f"list of {' or '.join(kinds)}"], sections
    if several := [_parts(each) for each in facts.get("anyOf") or facts.get("oneOf") or ()]:
        kinds = [kind for found, _ in several for kind in found]
        return kinds, [section for _, found in several for section in found]
    words = facts.get("enum", [facts["const"]] if "const" in facts else [facts.get("type", "value")])
    bounds = [f"{each} {facts[each]:g}" for each in _BOUNDS if each in facts]
    return [", ".join([*map(str, words), *bounds])], []
