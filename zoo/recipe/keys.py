"""The reference of a recipe's keys: from the schema, and from the texts below its fields."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from zoo.config import Config
from zoo.errors import RecipeError, did_you_mean
from zoo.recipe.recipe import Recipe

_TAG = "Which one it is; the other keys follow from it."
_ONE = "one of the sections below"
_BOUNDS = {"ge": "from", "gt": "above", "le": "up to", "lt": "below"}
_NOUNS = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "null"}


class Key(NamedTuple):
    """A key of a recipe.

    Attributes:
        path: as `--set` takes it, `objective.alpha`; N stands for a place in a list.
        kind: its type in words.
        default: as JSON; None where a recipe has to state it.
        text: what it means.
        sections: names of the sections that can stand there.
    """

    path: str
    kind: str
    default: str | None
    text: str
    sections: tuple[str, ...]


class Section(NamedTuple):
    """A section of a recipe, or one of several that can stand in the same place.

    Attributes:
        name: where it stands and, of several, which it is: `training.ema`, `objective.paco`.
        text: what it is; a line for each paragraph, the first one a summary.
        keys: its own, without those of sections inside.
    """

    name: str
    text: str
    keys: tuple[Key, ...]

    @property
    def summary(self) -> str:
        """What it is, in short."""
        return self.text.partition("\n")[0]


def section(name: str = "") -> Section:
    """Return a section of the recipe, by default the recipe itself.

    Args:
        name: its whole name, or the end of it: `objective.paco`, `paco`; also the path of one key,
            `training.epochs`, which is then the only one, or the end of it, `lr`, for all that end so. Keys
            of a section's name come after those of the section.

    Raises:
        RecipeError: for anything else, with the nearest name.
    """
    known = _sections()
    sought = name.strip().strip(".")
    if sought in known:
        return known[sought]
    keys = [(each.name, key) for each in known.values() for key in each.keys]
    ending = sorted((each for each in known if each.endswith(f".{sought}")), key=lambda each: each.count("."))
    if ending:
        found = known[ending[0]]
        plain = tuple(key for key in _ending_in(sought, keys) if "section" not in key.kind)
        return found._replace(keys=found.keys + plain)
    single = {key.path: key for _, key in reversed(keys)}  # of several objectives' the first one's
    single |= {f"{of}.{key.path.rpartition('.')[2]}": key for of, key in keys if of}
    if sought in single:
        return Section(sought, "", (single[sought],))
    if alike := _ending_in(sought, keys):
        return Section(sought, "", alike)
    words = [*known, *(each.rpartition(".")[2] for each in known), *single]
    raise RecipeError(
        f'keys: found "{name}", expected a section or a key of a recipe.{did_you_mean(sought, words)} '
        '"zoo keys" shows the sections'
    )


def _ending_in(word: str, keys: list[tuple[str, Key]]) -> tuple[Key, ...]:
    """Return the keys whose path ends in a word, each once.

    Where several sections can stand in one place, and mean other things by it, a path says whose it is.
    """
    found: dict[Key, str] = {}
    for of, key in keys:
        if key.path.rpartition(".")[2] == word:
            found.setdefault(key, f"{of}.{word}".strip("."))
    paths = Counter(key.path for key in found)
    return tuple(key if paths[key.path] == 1 else key._replace(path=path) for key, path in found.items())


@functools.cache
def _sections() -> dict[str, Section]:
    """Return all sections by name, the recipe itself first, under an empty one."""
    return {each.name: each for each in _walk("", "", Recipe, None)}


def _walk(name: str, path: str, schema: type[Config], tag: str | None) -> Iterator[Section]:
    """Yield a section and all inside; `tag` is its key that tells it from others in its place."""
    keys, inside = list[Key](), list[tuple[str, str, type[Config], str | None]]()
    for field, info in schema.model_fields.items():
        annotation = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        here = f"{path}.{field}".strip(".")
        found = [*_members(annotation, here)]
        told = _tag_of([member for _, member in found])
        named = []
        for place, member in found:
            spelled = _words(member.model_fields[told].annotation) if told else [None]
            for word in spelled:
                inner = ".".join(part for part in (name, field, word) if part)
                named.append(inner)
                inside.append((inner, place, member, told))
        instead = _about(found[0][1]).partition("\n")[0] if found else ""
        text = _TAG if field == tag else _one_line(info.description or instead)
        default = None if info.default is PydanticUndefined else _as_json(info.default)
        keys.append(Key(here, _kind(annotation, tagged=told is not None), default, text, tuple(named)))
    yield Section(name, _about(schema), tuple(keys))
    for each in inside:
        yield from _walk(*each)


def _members(annotation: Any, path: str) -> Iterator[tuple[str, type[Config]]]:
    """Yield the sections inside an annotation, each with its path in a recipe."""
    if inspect.isclass(annotation) and issubclass(annotation, Config):
        yield path, annotation
    elif get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0], path)
    else:
        listed = get_origin(annotation) is list
        for argument in get_args(annotation):
            yield from _members(argument, f"{path}.N" if listed else path)


def _tag_of(members: list[type[Config]]) -> str | None:
    """Return the key by which several sections in one place are told apart; None: there is one."""
    if len(members) < 2:
        return None
    shared = [
        field
        for field in members[0].model_fields
        if all(field in each.model_fields and _words(each.model_fields[field].annotation) for each in members)
    ]
    return shared[0]


def _words(annotation: Any) -> list[str]:
    return [str(word) for word in get_args(annotation)] if get_origin(annotation) is Literal else []


def _as_json(value: Any) -> str:
    text = json.dumps(to_jsonable_python(value))
    return json.dumps(json.loads(text, parse_float=lambda number: float(f"{float(number):g}")))


def _kind(annotation: Any, bounds: tuple[Any, ...] = (), *, tagged: bool = False) -> str:
    """Return a type in words: `whole number from 1 or null`."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return _kind(inner, (*bounds, *_flat(metadata)), tagged=tagged)
    if get_origin(annotation) in (Union, UnionType):
        kinds = [_kind(each, bounds, tagged=tagged) for each in get_args(annotation)]
        return " or ".join(dict.fromkeys(kinds))
    if get_origin(annotation) is Literal:
        *words, last = _words(annotation)
        return f"{', '.join(words)} or {last}" if words else last
    if get_origin(annotation) is list:
        lengths = {type(each).__name__: each for each in bounds}
        least = getattr(lengths.get("MinLen"), "min_length", 0)
        most = getattr(lengths.get("MaxLen"), "max_length", None)
        count = f"{least} " if least == most else ""
        kind = _kind(get_args(annotation)[0], tagged=tagged)
        return f"list of {count}{'the sections below' if kind == _ONE else _plural(kind)}"
    if inspect.isclass(annotation) and issubclass(annotation, Config):
        return _ONE if tagged else "section"
    if get_origin(annotation) is dict:
        return "mapping"
    noun = _NOUNS.get(annotation, "value")
    said = [
        f"{words} {_number(getattr(each, name))}"
        for name, words in _BOUNDS.items()
        for each in bounds
        if getattr(each, name, None) is not None
    ]
    return f"{noun} {', '.join(said)}" if said and annotation in (int, float) else noun


def _number(bound: float) -> str:
    power = int(bound).bit_length() - 1
    return f"2^{power}" if power > 16 and bound == 1 << power else f"{bound:g}"


def _flat(metadata: list[Any]) -> list[Any]:
    """Return what bounds a value, as `annotated_types` has it."""
    return [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]


def _plural(kind: str) -> str:
    return re.sub(r"^((?:whole )?(?:number|text|section|list))\b", r"\1s", kind)


def _about(schema: type[Config]) -> str:
    """Return the docstring of a section, a line for each paragraph."""
    return "\n".join(_one_line(each) for each in inspect.cleandoc(schema.__doc__ or "").split("\n\n"))


def _one_line(text: str) -> str:
    return " ".join(text.split())
