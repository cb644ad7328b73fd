"""The reference of a recipe's keys for `zoo show KEY`, read from the sections' fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from zoo.config import Config
from zoo.errors import RecipeError, did_you_mean
from zoo.recipe.recipe import Recipe

_TAGS = ("name", "kind", "op", "protocol")  # fields that select one of several sections


class Key(NamedTuple):
    """A key of a recipe, or one of several sections that a key can have."""

    name: str  # with the words that select sections, `objective.paco.tau`
    path: str  # as in `--set`, `objective.tau`, without list indices
    kind: str  # its type in words; empty for one of several sections
    default: str | None  # as JSON; None if a recipe must state it
    text: str


def find_keys(name: str = "") -> list[Key]:
    """Return the keys whose names end in e.g. `objective.paco` or `lr`, and their subkeys; "": the top level.

    Raises:
        RecipeError: for an unknown name, with the nearest one.
    """
    known = [*_keys_of(Recipe)]
    if not name:
        return [key for key in known if "." not in key.name]
    found = {k.name for k in known if f".{k.name}".endswith(f".{name}") or (k.kind and k.path == name)}
    if not found:
        hint = did_you_mean(name, [word for key in known for word in (key.name, key.name.split(".")[-1])])
        raise RecipeError(f'keys: found "{name}", expected a section or a key of a recipe.{hint}')
    return [key for key in known if {key.name, key.name.rpartition(".")[0]} & found]


def _keys_of(section: type[Config], name: str = "", path: str = "") -> Iterator[Key]:
    for field, facts in section.model_fields.items():
        own, here, sections = f"{name}{field}", f"{path}{field}", _sections_in(facts.annotation)
        default = None if facts.is_required() else json.dumps(facts.default, default=dict)
        text = facts.description or (sections[0].__doc__ if len(sections) == 1 else "") or "Which one it is."
        yield Key(own, here, _words(facts.annotation), default, text)
        for each in sections:
            tags = next((each.model_fields[t].annotation for t in _TAGS if t in each.model_fields), None)
            for word in get_args(tags) if len(sections) > 1 else ():
                yield Key(f"{own}.{word}", here, "", None, each.__doc__ or "")
                yield from _keys_of(each, f"{own}.{word}.", f"{here}.")
            if len(sections) == 1:
                yield from _keys_of(each, f"{own}.", f"{here}.")


def _words(annotation: Any) -> str:
    """Return a type in words, e.g. `float or section`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (Annotated, list):
        return f"{'list of ' if origin is list else ''}{_words(inner[0])}"
    if inner and origin is not dict:  # a union
        return " or ".join(dict.fromkeys(map(_words, inner)))
    name = "section" if _sections_in(annotation) else str(getattr(annotation, "__name__", annotation))
    return name.replace("NoneType", "null")


def _sections_in(annotation: Any) -> list[type[Config]]:
    """Return the sections in `A | list[B] | Annotated[C, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [section for argument in get_args(annotation) for section in _sections_in(argument)]
