"""Strict configuration: plain YAML in and out, and one clear error for anything that does not fit."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, TypeVar, get_args, get_origin

import pydantic
import yaml
from pydantic.fields import FieldInfo

from zoo.errors import RecipeError, ZooError, did_you_mean, nearest

MAX_YAML_BYTES = 1 << 18  # a recipe is a page; anything near this size is a mistake or an attack
MAX_YAML_DEPTH = 32
_TOO_DEEP = f"nested deeper than {MAX_YAML_DEPTH} levels"


class Config(pydantic.BaseModel):
    """Base of every section of a recipe: no unknown keys, no silent conversions, immutable.

    The text below a field is its description, which `zoo keys` shows.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


_NO_SECTION = "model_attributes_type"
"""Pydantic's word for a value in the place of a section that is told from others by one of its keys."""

ConfigT = TypeVar("ConfigT", bound=Config)


def parse(
    schema: type[ConfigT],
    data: Any,
    where: str,
    error_type: type[ZooError] = RecipeError,
    before: Any = None,
) -> ConfigT:
    """Validate plain `data` against `schema`.

    A section that is told by its name and needs nothing else may be given by it: `crt` for `{name: crt}`.

    Args:
        schema: what is expected.
        data: what was found.
        where: the beginning of every message.
        error_type: what is raised.
        before: the data as it was before a user's changes, where there were some: what an error suggests in
            their place keeps the rest of a section.

    Raises:
        ZooError: of `error_type`, naming `where`, the path of the key, what was found, what was expected,
            and the nearest valid key where a key is unknown.
    """
    try:
        return schema.model_validate(data)
    except pydantic.ValidationError as error:
        items = error.errors(include_url=False)
    named = data
    for item in items:
        if item["type"] == _NO_SECTION:
            named = _with_section(schema, named, item)
    if named is not data:
        return parse(schema, named, where, error_type, before)
    problems: list[str] = []
    for item in items:
        text, keys, listing = _explain(schema, item, before).partition(" Valid keys: ")
        listed = any(problem.endswith(keys + listing) for problem in problems)  # once is enough
        problems.append(text if listed else text + keys + listing)
    raise error_type(f"{where}: " + "; ".join(problems))


def _with_section(schema: type[Config], data: Any, item: Any) -> Any:
    """Return `data` with a section in the place of its bare name, where that is all it needs."""
    place, name = _locate(schema, item["loc"]), item["input"]
    tag = _tag(place.sections)
    section = _tagged(place.sections, tag, name)
    if section is None or _needed_beside(section, tag):
        return data
    return _put(data, place.path, {tag: name})


def _put(data: Any, path: Sequence[Any], value: Any) -> Any:
    """Return a copy of nested plain data with another value in one place."""
    if not path:
        return value
    copied = list(data) if isinstance(data, list) else dict(data)
    copied[path[0]] = _put(data[path[0]], path[1:], value)
    return copied


def _tag(sections: Sequence[type[Config]]) -> str:
    """Return the key that tells sections apart: for each of them it takes other words."""

    def tells(key: str) -> bool:
        words = [word for each in sections for word in _words(each, key)]
        return len(words) == len({*words}) and all(_words(each, key) for each in sections)

    return next(filter(tells, sections[0].model_fields))


def _words(section: type[Config], key: str) -> tuple[Any, ...]:
    field = section.model_fields.get(key)
    annotation = None if field is None else field.annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _tagged(sections: Sequence[type[Config]], tag: str, name: object) -> type[Config] | None:
    return next((each for each in sections if name in _words(each, tag)), None)


def _needed_beside(section: type[Config], tag: str) -> list[str]:
    return [key for key, field in section.model_fields.items() if field.is_required() and key != tag]


def _explain(schema: type[Config], item: Any, before: Any) -> str:
    place = _locate(schema, item["loc"])
    path, siblings = ".".join(map(str, place.path)), place.siblings
    found, kind = item["input"], item["type"]
    if kind == "extra_forbidden":
        hint = did_you_mean(item["loc"][-1], siblings)
        return f'unknown key "{path}".{hint} Valid keys: {", ".join(siblings)}'
    if kind == "missing":
        return f'missing key "{path}"'
    if kind in {"value_error", "assertion_error"}:
        message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return f"{path}: {message}" if path else message
    if kind == "union_tag_not_found":
        return f'missing key "{path}.{item["ctx"]["discriminator"].strip(chr(39))}"'
    if kind == "union_tag_invalid":
        tags = re.findall(r"'([^']*)'", item["ctx"]["expected_tags"])
        tag = item["ctx"]["tag"]
        path = f"{path}.{item['ctx']['discriminator'].strip(chr(39))}"
        return f'"{path}": found "{tag}", expected one of {", ".join(tags)}.{did_you_mean(tag, tags)}'
    if kind == _NO_SECTION:
        return f'"{path}": found {_short(found)}, expected {_expected_section(place.sections, found)}'
    if kind == "model_type" and place.sections:
        there = not place.nullable if before is None else isinstance(_at(before, place.path), Mapping)
        expected = _expected_mapping(place.sections[0], path, found, there)
        return f'"{path}": found {_short(found)}, expected {"null or " * place.nullable}{expected}'
    if kind in {"too_short", "too_long"}:
        noun = "number" if found and all(map(is_number, found)) else "value"
        count = f"{len(found)} {noun}{'' if len(found) == 1 else 's'}"
        return f'"{path}": found {count}, expected {_expected_length(place.length, item)}'
    message = item["msg"].removeprefix("Input should be ")
    if "<number>" in item["loc"]:
        message += " or a section, e.g. {kind: linear, start: 0.2, end: 0.1}"
    if kind == "dict_type":
        message = "a mapping, {key: value, ...}"
    if kind == "literal_error":
        message = _expected_word(place.sections, found, message)
    return f'"{path}": found {_short(found)}, expected {message}'


def _expected_word(sections: Sequence[type[Config]], found: object, message: str) -> str:
    """Say which words may stand there, pydantic's `message`, and which sections in the place of one."""
    words = re.findall(r"'([^']*)'", message)
    if not sections:
        return (message + "." + did_you_mean(found, words)).rstrip(".")
    tag = _tag(sections)
    if _tagged(sections, tag, found) is not None:
        return _expected_section(sections, found)
    names = [str(name) for each in sections for name in _words(each, tag)]
    others = f'{message}, or a section with "{tag}", one of {", ".join(names)}'
    return (others + "." + did_you_mean(found, [*words, *names])).rstrip(".")


def _expected_mapping(section: type[Config], path: str, found: object, there: bool) -> str:
    """Say which keys a section has, and where a word in its place most likely belongs.

    Args:
        section: what is expected.
        path: where.
        found: what is there instead.
        there: whether the recipe has the section, whose other keys are to stay.
    """
    expected = f"a mapping with the keys {', '.join(section.model_fields)}"
    if not isinstance(found, str):
        return expected
    needed = [key for key, field in section.model_fields.items() if field.is_required()]
    word: str | None = found
    if "name" in section.model_fields:
        key, words = "name", [str(each) for each in _words(section, "name")]
        word = nearest(found, words) if words else found
    elif len(needed) == 1 and section.model_fields[needed[0]].annotation is str:
        key = needed[0]
    else:
        return expected
    if word is None:
        return expected
    whole = not there and needed == [key]
    meant = f"{path}={yaml_in_line({key: word})}" if whole else f"{path}.{key}={yaml_in_line(word)}"
    return f'{expected}. Did you mean "{meant}"?'


def _at(data: Any, path: Sequence[Any]) -> Any:
    """Return what is at a place of nested plain data; None where that is not there."""
    for key in path:
        listed = isinstance(data, list) and isinstance(key, int) and key < len(data)
        data = data[key] if listed or (isinstance(data, Mapping) and key in data) else None
    return data


def _expected_section(sections: Sequence[type[Config]], found: object) -> str:
    """Say which keys the section needs that `found` names, or which names there are."""
    tag = _tag(sections)
    section = _tagged(sections, tag, found)
    if section is not None:
        others = "".join(f", {key}: ..." for key in _needed_beside(section, tag))
        return f"{{{tag}: {found}{others}}}"
    names = [str(name) for each in sections for name in _words(each, tag)]
    return f'a section with "{tag}", one of {", ".join(names)}.{did_you_mean(found, names)}'.rstrip(".")


def _expected_length(length: tuple[int | None, int | None], item: Any) -> str:
    least, most = length
    if least is not None and least == most:
        return str(least)
    bounds = item["ctx"]
    return f"at least {bounds['min_length']}" if "min_length" in bounds else f"at most {bounds['max_length']}"


def _short(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def plain_kind(value: object) -> str:
    """Return what a plain value is, with its article: a list, a dict, ...; nothing for None."""
    return "nothing" if value is None else f"a {type(value).__name__}"


def is_number(value: object) -> TypeGuard[float]:
    """Whether a plain value is a number, nan and inf among them; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def leaves(plain: Any, path: str = "") -> list[tuple[str, Any]]:
    """List the keys of nested sections, as `training.epochs`, with their values; an empty section is one."""
    if not isinstance(plain, Mapping) or not plain:
        return [(path, plain)]
    below = ((value, f"{path}.{key}" if path else str(key)) for key, value in plain.items())
    return [leaf for value, key in below for leaf in leaves(value, key)]


class _Place(NamedTuple):
    """Where in a schema an error is.

    Attributes:
        path: as the user wrote it.
        siblings: the valid keys beside its last part.
        sections: that may stand there.
        nullable: whether null may.
        length: the fewest and the most values of a list there, where the key itself bounds them.
    """

    path: list[Any]
    siblings: list[str]
    sections: list[type[Config]]
    nullable: bool
    length: tuple[int | None, int | None]


def _locate(schema: type[Config], loc: tuple[Any, ...]) -> _Place:
    """Follow `loc` from `schema`.

    pydantic puts the tag of a union's member into the path; no user wrote it, so it is left out: a value of
    the union's discriminator, or a tag in angle brackets.
    """
    candidates: list[Any] = [schema]
    siblings: list[str] = []
    path: list[Any] = []
    fields: list[FieldInfo] = []
    for part in loc:
        if isinstance(part, str) and part.startswith("<"):
            continue
        models = _sections(candidates)
        tagged = [m for m in models if _has_literal(m, part)]
        if len(models) > 1 and tagged:  # of several members the tag comes first, though a field be so named
            candidates = tagged
            continue
        path.append(part)
        if isinstance(part, int):
            fields = []
            continue  # the members of a list's annotation are already the candidates
        siblings = sorted({name for model in models for name in model.model_fields})
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        candidates = [member for field in fields for member in _members(field.annotation)]
    bounds = [bound for field in fields for bound in field.metadata]
    least, most = (
        next((value for bound in bounds if (value := getattr(bound, name, None)) is not None), None)
        for name in ("min_length", "max_length")
    )
    return _Place(path, siblings, _sections(candidates), NoneType in candidates, (least, most))


def _sections(candidates: Sequence[Any]) -> list[type[Config]]:
    return [each for each in candidates if isinstance(each, type) and issubclass(each, Config)]


def _has_literal(model: type[Config], value: object) -> bool:
    return any(value in get_args(field.annotation) for field in model.model_fields.values())


def _members(annotation: Any) -> list[Any]:
    """Flatten `A | list[B] | Annotated[C, ...]` to the classes inside."""
    arguments = get_args(annotation)
    if not arguments:
        return [annotation]
    return [member for argument in arguments for member in _members(argument)]


if TYPE_CHECKING:
    _Parser = yaml.SafeLoader
else:
    _Parser = getattr(
        yaml, "CSafeLoader", yaml.SafeLoader
    )  # libyaml's is ten times as fast; most builds have it


class _Loader(_Parser):
    """YAML 1.2's reading of numbers and booleans: `1e-4` is a number, `no` and `on` are words."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key is not a word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f'duplicate key "{key.value}"', problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag.rsplit(":", 1)[-1] in {"null", "merge"}]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def load_yaml(text: str, where: str, error_type: type[ZooError] = RecipeError) -> Any:
    """Read one YAML document of plain values.

    Raises:
        ZooError: of `error_type`, for bad syntax (with line and column), duplicate keys, anchors and aliases,
            tags that would construct objects, a text above 256 KiB or nested deeper than 32 levels.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_YAML_BYTES:
        raise error_type(f"{where}: found {size:,} bytes, expected at most {MAX_YAML_BYTES:,}")
    try:
        _check_structure(text)
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or (str(error).splitlines() or ["unreadable"])[0]
        if "nesting depth" in problem:  # libyaml's own bound since PyYAML 6.0.4, met while it looks ahead
            problem = _TOO_DEEP
        raise error_type(f"{where}: not valid YAML{at}: {problem}") from None


def _check_structure(text: str) -> None:
    """Refuse, before anything is built, what lets a small file expand to gigabytes or exhaust the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Parser):
        problem = ""
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases are not allowed"
        elif getattr(event, "anchor", None):
            problem = "anchors are not allowed"
        elif tag := getattr(event, "tag", None):  # `!!binary`, `!!python/name:...`: plain values need none
            problem = f"tags are not allowed, found {tag}"
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_YAML_DEPTH:
                problem = _TOO_DEEP
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if problem:
            mark: Any = event.start_mark  # of libyaml or of PyYAML
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _Dumper(yaml.SafeDumper):
    """Sections in block style, leaves of at most one level on one line: what a person would write."""


def _represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    flat = not any(isinstance(value, (list, dict)) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flat)


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    text = repr(value)
    if "." not in text and "e" in text:  # "1e-05" reads back as a float everywhere only with a point
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


def _represent_str(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


# a text that our reader would take for a number must be quoted, whatever YAML 1.1 thinks of it
_Dumper.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeDumper.yaml_implicit_resolvers.items()}
for _first, _rules in _Loader.yaml_implicit_resolvers.items():
    _Dumper.yaml_implicit_resolvers.setdefault(_first, []).extend(_rules)
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(str, _represent_str)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Write plain values as YAML that `load_yaml` (and any YAML 1.1 reader) reads back unchanged."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def yaml_in_line(value: Any) -> str:
    """Write one plain value as YAML in a single line."""
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20
    )
    return str(text).removesuffix("...\n").strip()  # its mark of the end after a bare number or word
