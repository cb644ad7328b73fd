"""Strict configuration: plain YAML in and out, and one clear error for anything that does not fit."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, get_args, get_origin

import pydantic
import yaml

from zoo.errors import RecipeError, ZooError, did_you_mean

MAX_YAML_BYTES = 1 << 18  # a recipe is a page; anything near this size is a mistake or an attack
MAX_YAML_DEPTH = 32


class Config(pydantic.BaseModel):
    """Base of every section of a recipe: no unknown keys, no silent conversions, immutable.

    The text below a field is its description, which `zoo show KEY` shows.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def named_by(tag: str) -> pydantic.BeforeValidator:
    """Let one of several sections, told apart by `tag`, be given by its name: `crt` for `{name: crt}`."""
    return pydantic.BeforeValidator(lambda found: {tag: found} if isinstance(found, str) else found)


ConfigT = TypeVar("ConfigT", bound=Config)


def parse(schema: type[ConfigT], data: Any, where: str, error_type: type[ZooError] = RecipeError) -> ConfigT:
    """Validate plain `data` against `schema`.

    Raises:
        ZooError: of `error_type`, naming `where`, the path of each wrong key, what was found, what was
            expected in pydantic's words, and the nearest valid key or word.
    """
    try:
        return schema.model_validate(data)
    except pydantic.ValidationError as error:
        problems = [_explain(schema, item) for item in error.errors(include_url=False)]
    raise error_type(f"{where}: " + "; ".join(dict.fromkeys(problems)))


def _explain(schema: type[Config], item: Any) -> str:
    path, beside, sections = _locate(schema, item["loc"])
    place, kind, found, context = ".".join(map(str, path)), item["type"], item["input"], item.get("ctx", {})
    expected = item["msg"].removeprefix("Value error, ").replace("Input should be ", "expected ")
    tag = context.get("discriminator", "")[1:-1]
    if kind == "extra_forbidden":
        keys = _keys(beside)
        hint = _inside(path, beside) or did_you_mean(path[-1], keys)
        return f'unknown key "{place}".{hint} Valid keys: {", ".join(keys)}'
    if kind in ("missing", "union_tag_not_found"):
        return f'missing key "{f"{place}.{tag}" if tag else place}"'
    if kind == "value_error":
        return f"{place}: {expected}" if place else expected
    if kind == "union_tag_invalid":
        place, found = f"{place}.{tag}", context["tag"]
        expected = f"expected one of {context['expected_tags']}"
    if kind == "model_type":
        expected = f"expected a mapping with the keys {', '.join(_keys(sections))}"
    text = repr(found)
    shown = f"{text if len(text) <= 80 else text[:77] + '...'} ({type(found).__name__})"
    words = re.findall(r"'([^']*)'", expected)
    at = f'"{place}": ' if place else ""
    return f"{at}found {shown}, {expected}.{did_you_mean(found, words)}".rstrip(".")


def _inside(path: list[int | str], beside: list[type[Config]]) -> str:
    """Return a hint at the section that has the key: `training.epochs` for `epochs`."""
    *before, key = path
    found = [
        ".".join(map(str, [*before, name, key]))
        for section in beside
        for name, field in section.model_fields.items()
        if get_origin(field.annotation) is not list and type(None) not in get_args(field.annotation)
        if any(key in member.model_fields for member in _members(field.annotation))
    ]
    return f' Did you mean "{found[0]}"?' if len(found) == 1 else ""


def _locate(
    schema: type[Config], loc: tuple[int | str, ...]
) -> tuple[list[int | str], list[type[Config]], list[type[Config]]]:
    """Return an error's path as the user wrote it, the sections with its last key, and those that it may be.

    pydantic puts the tag of a union's member into it, which no user wrote: `(objective, paco, tau)`. Of
    several sections it chooses one; in angle brackets it tells a section from a word or a number.
    """
    path: list[int | str] = []
    beside, sections = [schema], [schema]
    for part in loc:
        words = {
            each: [get_args(field.annotation) for field in each.model_fields.values()] for each in sections
        }
        chosen = [each for each in sections if any(part in few for few in words[each])]
        if len(sections) > 1 and chosen:  # though a field may have the same name
            sections = chosen
        elif isinstance(part, int):
            path.append(part)  # the sections of a list are already those of its members
        elif not part.startswith("<"):
            path.append(part)
            fields = [each.model_fields[part] for each in sections if part in each.model_fields]
            beside, sections = sections, [each for field in fields for each in _members(field.annotation)]
    return path, beside, sections


def _keys(sections: list[type[Config]]) -> list[str]:
    return [*dict.fromkeys(name for section in sections for name in section.model_fields)]


def _members(annotation: Any) -> list[type[Config]]:
    """Return the sections in `A | list[B] | Annotated[C, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [member for argument in get_args(annotation) for member in _members(argument)]


def listed(given: Sequence[Any]) -> Sequence[Any]:
    """Return what `*names` holds: each by itself, or all in one list."""
    return given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given


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


if TYPE_CHECKING:
    _Parser = yaml.SafeLoader
else:
    # libyaml's is ten times as fast; most builds have it
    _Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
        raise error_type(f"{where}: not valid YAML{at}: {problem}") from None


def _check_structure(text: str) -> None:
    """Refuse, before anything is built, what lets a small file expand to gigabytes or exhaust the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Parser):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        mark: Any = event.start_mark  # of libyaml or of PyYAML
        if depth > MAX_YAML_DEPTH:
            problem = f"nested deeper than {MAX_YAML_DEPTH} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        if getattr(event, "anchor", None) or getattr(event, "tag", None):  # an alias has its anchor's name
            problem = "anchors, aliases and tags are not allowed"
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
