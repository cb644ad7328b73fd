"""The reference of a recipe's keys: from the schema, and from the texts below its fields."""

from __future__ import annotations

import functools
import inspect
import json
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from zoo.config import Config
from zoo.errors import RecipeError, did_you_mean
from zoo.recipe.recipe import Recipe

_BOUNDS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "up to",
    "exclusiveMaximum": "below",
}
_NOUNS = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "text"}


class Key(NamedTuple):
    """A key of a recipe, or one of several sections that may stand at one.

    Attributes:
        name: with the words that choose sections, `objective.paco.tau`.
        path: as `--set` takes it, `objective.tau`; N stands for a place in a list.
        kind: its type in words; empty for one of several sections.
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
    return _keys_of(Recipe, "", "")


def _keys_of(schema: type[Config], name: str, path: str) -> tuple[Key, ...]:
    fields = schema.model_fields.items()
    return tuple(_key(info, f"{name}{field}", f"{path}{field}") for field, info in fields)


def _key(info: FieldInfo, name: str, path: str) -> Key:
    annotation: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
    sections = [*dict.fromkeys(_sections(info.annotation))]
    place = f"{path}.N." if get_origin(info.annotation) is list else f"{path}."
    text, inside = info.description, tuple[Key, ...]()
    if len(sections) == 1:
        text, inside = text or _about(sections[0]), _keys_of(sections[0], f"{name}.", place)
    else:
        inside = tuple(
            Key(f"{name}.{word}", path, "", None, _about(each), _keys_of(each, f"{name}.{word}.", place))
            for each, words in _chosen_by(sections)
            for word in words
        )
    default = None if info.default is PydanticUndefined else _as_json(info.default)
    kind = _kind(TypeAdapter(annotation).json_schema())
    return Key(name, path, kind, default, " ".join((text or "Which one it is.").split()), inside)


def _sections(annotation: Any) -> Iterator[type[Config]]:
    if inspect.isclass(annotation) and issubclass(annotation, Config):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _chosen_by(sections: list[type[Config]]) -> Iterator[tuple[type[Config], list[str]]]:
    """Yield each of several sections with the words that choose it: those of the key that all have."""
    keys = [
        {field for field, info in each.model_fields.items() if get_origin(info.annotation) is Literal}
        for each in sections
    ]
    for each in sections:
        (tag, *_) = [field for field in each.model_fields if field in set.intersection(*keys)]
        yield each, [str(word) for word in get_args(each.model_fields[tag].annotation)]


def _kind(schema: dict[str, Any]) -> str:
    """Return a type in words, `whole number from 1 or null`, from its JSON schema."""
    several = schema.get("anyOf") or schema.get("oneOf")
    if several:
        return " or ".join(dict.fromkeys(map(_kind, several)))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        return f"list of {f'{least} ' if least == most else ''}{_kind(schema.get('items', {}))}"
    if "$ref" in schema or schema.get("type") == "object":
        return "section"
    bounds = [f"{word} {schema[bound]:g}" for bound, word in _BOUNDS.items() if bound in schema]
    noun = _NOUNS.get(schema.get("type", ""), schema.get("type", "value"))
    return " ".join([noun, ", ".join(bounds)]).strip()


def _as_json(value: Any) -> str:
    text = json.dumps(to_jsonable_python(value))
    return json.dumps(json.loads(text, parse_float=lambda number: float(f"{float(number):g}")))


def _about(schema: type[Config]) -> str:
    """Return the docstring of a section, a line for each paragraph."""
    paragraphs = inspect.cleandoc(schema.__doc__ or "").split("\n\n")
    return "\n".join(" ".join(each.split()) for each in paragraphs)
