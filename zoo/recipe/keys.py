"""The reference of a recipe's keys, `zoo show KEY`, read from the sections' fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from zoo.config import Config, sections_in
from zoo.errors import RecipeError, did_you_mean
from zoo.recipe.recipe import Recipe

_TAGS = ("name", "kind", "op", "protocol")  # fields whose words choose one of several sections
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


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
    if not name:
        return [*_keys_of(Recipe)]
    known = [*_walk(_keys_of(Recipe))]
    found = [key for key in known if f".{key.name}".endswith(f".{name}") or (key.kind and key.path == name)]
    if not found:
        hint = did_you_mean(name, [word for key in known for word in (key.name, key.name.split(".")[-1])])
        raise RecipeError(f'keys: found "{name}", expected a section or a key of a recipe.{hint}')
    return found if len(found) == 1 else [key._replace(path=key.name) for key in found]


def _walk(keys: tuple[Key, ...]) -> Iterator[Key]:
    for key in keys:
        yield key
        yield from _walk(key.inside)


def _keys_of(section: type[Config], name: str = "", path: str = "") -> tuple[Key, ...]:
    found = list[Key]()
    for field, facts in section.model_fields.items():
        own, here, inside = f"{name}{field}", f"{path}{field}", list[Key]()
        below = f"{here}.N." if get_origin(facts.annotation) is list else f"{here}."
        sections = sections_in(facts.annotation)
        for each in sections:
            text = " ".join((each.__doc__ or "").split())
            tags = [each.model_fields[tag].annotation for tag in _TAGS if tag in each.model_fields]
            if len(sections) == 1:
                inside += _keys_of(each, f"{own}.", below)
            for word in get_args(tags[0]) if len(sections) > 1 else ():
                keys = _keys_of(each, f"{own}.{word}.", below)
                inside.append(Key(f"{own}.{word}", here, "", None, text, keys))
        default = None if facts.is_required() else json.dumps(facts.default, default=dict)
        about = facts.description or (text if len(sections) == 1 else "Which one it is.")
        kind = _words(facts.annotation, facts.metadata)
        found.append(Key(own, here, kind, default, " ".join(about.split()), tuple(inside)))
    return tuple(found)


def _words(annotation: Any, bounds: Any = ()) -> str:
    """Return a type in words, e.g. `int >= 1 or null`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(inner[0], [bound for each in inner[1:] for bound in getattr(each, "metadata", ())])
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin is list:
        return f"list of {_words(inner[0])}"
    if inner and origin is not dict:  # a union
        return " or ".join(dict.fromkeys(map(_words, inner)))
    if sections_in(annotation):
        return "section"
    limits = [
        f" {sign} {getattr(each, key):g}"
        for each in bounds
        for key, sign in _BOUNDS.items()
        if hasattr(each, key)
    ]
    return "".join(["null" if annotation is type(None) else annotation.__name__, *limits])
