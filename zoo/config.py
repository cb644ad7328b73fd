"""Strict configuration: pydantic's models with one clear error, and plain YAML in and out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

import pydantic
import yaml
from pydantic.fields import FieldInfo

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
    """Let a section of a discriminated union be given by its name alone: `crt` for `{name: crt}`."""
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
    kind, found, context = item["type"], item["input"], item.get("ctx", {})
    keys, sections = _locate(schema, item["loc"])
    expected = item["msg"].removeprefix("Value error, ").replace("Input should be ", "expected ")
    if kind.startswith("union_tag"):  # the fault is at the key that chooses the section
        keys.append(context["discriminator"][1:-1])
        found, expected = context.get("tag"), f"expected one of {context.get('expected_tags')}"
    path = ".".join(keys)
    if kind == "extra_forbidden":
        fields = [field for section in sections for field in section.model_fields.items()]
        inside = [f"{name}.{keys[-1]}" for name, field in fields if _has_section_with(keys[-1], field)]
        hint = f' Did you mean "{".".join([*keys[:-1], inside[0]])}"?' if inside else ""
        valid = [*dict(fields)]
        return f'unknown key "{path}".{hint or did_you_mean(keys[-1], valid)} Valid keys: {", ".join(valid)}'
    if kind in ("missing", "union_tag_not_found"):
        return f'missing key "{path}"'
    place = path if kind == "value_error" else f'"{path}"'
    if kind != "value_error":
        hint = did_you_mean(found, re.findall(r"'([^']*)'", expected))
        expected = f"found {repr(found)[:80]} ({type(found).__name__}), {expected}.{hint}".rstrip(".")
    return f"{place}: {expected}" if path else expected


def _locate(schema: type[Config], loc: tuple[int | str, ...]) -> tuple[list[str], list[type[Config]]]:
    """Return an error's path as the user wrote it, and the sections that its last key may belong to.

    In pydantic's path a union's member is named by the word that chose it, `(objective, paco, tau)`, or by a
    tag in angle brackets; no user wrote these.
    """
    path, beside, sections = list[str](), [schema], [schema]
    for part in map(str, loc):
        chosen = [
            section
            for section in sections
            if any(part in get_args(field.annotation) for field in section.model_fields.values())
        ]
        if len(sections) > 1 and chosen:  # first: an objective and one of its fields may have the same name
            sections = chosen
        elif not part.startswith("<"):
            path.append(part)
            if not part.isdigit():  # the sections of a list are already those of its members
                beside, fields = sections, [each.model_fields.get(part) for each in sections]
                sections = [member for field in fields if field for member in _members(field.annotation)]
    return path, beside


def _members(annotation: Any) -> list[type[Config]]:
    """Return the sections in `A | list[B] | Annotated[C, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [member for argument in get_args(annotation) for member in _members(argument)]


def _has_section_with(key: str, field: FieldInfo) -> bool:
    single = field.is_required() and get_origin(field.annotation) is not list
    return single and any(key in section.model_fields for section in _members(field.annotation))


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
    return [leaf for key in plain for leaf in leaves(plain[key], f"{path}.{key}" if path else str(key))]


_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast


class _Loader(_Parser):  # type: ignore[misc]
    """Reads numbers and booleans as YAML 1.2: `1e-4` is a number, `no` and `on` are words."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [word for word, count in counts.items() if count > 1]:
            problem = f'duplicate key "{twice[0]}"'
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return dict(super().construct_mapping(node, deep))


class _Dumper(yaml.SafeDumper):
    """Writes mappings in block style, flat lists on one line, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_NUMBER = r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"
for _kind, _pattern, _first in (
    ("null", r"^(?:~|null|)$", ["~", "n", ""]),
    ("bool", r"^(?:true|false)$", ["t", "f"]),
    ("int", r"^[-+]?[0-9]+$", [*"-+0123456789"]),
    ("float", _NUMBER, [*"-+.0123456789"]),
):
    for _class in (_Loader, _Dumper):  # which so quotes words that the loader would take for numbers
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)


def _represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    flat = not any(isinstance(value, list | dict) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flat)


_Dumper.add_representer(list, _represent_list)


def load_yaml(text: str, where: str, error_type: type[ZooError] = RecipeError) -> Any:
    """Read one YAML document of plain values.

    Raises:
        ZooError: of `error_type`, for bad syntax (with line and column), duplicate keys, anchors, aliases and
            tags, a text above 256 KiB or nested deeper than 32 levels.
    """
    size, depth = len(text.encode("utf-8", "replace")), 0
    if size > MAX_YAML_BYTES:
        raise error_type(f"{where}: found {size:,} bytes, expected at most {MAX_YAML_BYTES:,}")
    try:
        for event in yaml.parse(text, Loader=_Parser):  # before anything is built of it
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            problem = f"nested deeper than {MAX_YAML_DEPTH} levels" if depth > MAX_YAML_DEPTH else None
            if getattr(event, "anchor", None) or getattr(event, "tag", None):  # an alias has its anchor's
                problem = "anchors, aliases and tags are not allowed"
            if problem:
                where_found: Any = event.start_mark  # of libyaml or of PyYAML
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=where_found)
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or (str(error).splitlines() or ["unreadable"])[0]
        raise error_type(f"{where}: not valid YAML{at}: {problem}") from None


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Write plain values as YAML that `load_yaml` (and any YAML 1.1 reader) reads back unchanged."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
