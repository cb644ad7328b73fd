"""Strict configuration: plain YAML in and out, and one clear error for anything that does not fit."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import pydantic
import yaml

from zoo.errors import RecipeError, did_you_mean

MAX_YAML_BYTES = 1 << 20  # a recipe is a page; anything near this size is a mistake or an attack


class Config(pydantic.BaseModel):
    """Base of every section of a recipe: no unknown keys, no silent conversions, immutable."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


ConfigT = TypeVar("ConfigT", bound=Config)


def parse(schema: type[ConfigT], data: Any, where: str) -> ConfigT:
    """Validate plain `data` against `schema`.

    Raises:
        RecipeError: naming `where`, the path of the key, what was found, what was expected, and the
            nearest valid key where a key is unknown.
    """
    try:
        return schema.model_validate(data)
    except pydantic.ValidationError as error:
        problems = [_explain(schema, item) for item in error.errors(include_url=False)]
        raise RecipeError(f"{where}: " + "; ".join(problems)) from None


def _explain(schema: type[Config], item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"] if not _is_tag(part))
    found = item["input"]
    if item["type"] == "extra_forbidden":
        keys = _sibling_keys(schema, item["loc"])
        expected = f" (valid keys: {', '.join(keys)})" if keys else ""
        return f'unknown key "{path}".{did_you_mean(item["loc"][-1], keys)}{expected}'
    if item["type"] == "missing":
        return f'missing key "{path}"'
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if item["type"] in {"value_error", "assertion_error"}:
        return f'"{path}": {message}' if path else message
    hint = ""
    if item["type"] == "literal_error":
        hint = did_you_mean(found, re.findall(r"'([^']*)'", item["ctx"]["expected"]))
    elif item["type"] == "union_tag_invalid":
        tags = re.findall(r"'([^']*)'", item["ctx"]["expected_tags"])
        key = item["ctx"]["discriminator"].strip("'")
        found, path = item["ctx"]["tag"], f"{path}.{key}"
        message, hint = f"one of {', '.join(tags)}", did_you_mean(found, tags)
    return f'"{path}": found {_short(found)}, expected {message}.{hint}'


def _is_tag(part: object) -> bool:
    # pydantic puts the tag or the class of a union's member into the path; no user wrote it
    return isinstance(part, str) and (part.startswith("tag:") or part in {"list", "tuple"})


def _short(value: object) -> str:
    text = repr(value)
    kind = type(value).__name__
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({kind})"


def _sibling_keys(schema: type[Config], loc: tuple[Any, ...]) -> list[str]:
    """Return the valid keys beside the last part of `loc`, following nested sections from `schema`."""
    candidates: list[Any] = [schema]
    for part in loc[:-1]:
        reached: list[Any] = []
        for annotation in candidates:
            if isinstance(annotation, type) and issubclass(annotation, Config):
                field = annotation.model_fields.get(str(part))
                if field is not None:
                    reached += _members(field.annotation)
                elif any(_tag_values(annotation, str(part))):
                    reached.append(annotation)
        if reached:
            candidates = reached
    models = [c for c in candidates if isinstance(c, type) and issubclass(c, Config)]
    return sorted({name for model in models for name in model.model_fields})


def _tag_values(model: type[Config], value: str) -> list[str]:
    """Return names of literal fields of `model` that allow `value`: how a union's member is tagged."""
    return [name for name, f in model.model_fields.items() if value in getattr(f.annotation, "__args__", ())]


def _members(annotation: Any) -> list[Any]:
    """Flatten `A | list[B] | Annotated[C, ...]` to the classes inside."""
    arguments = getattr(annotation, "__args__", None)
    if not arguments:
        return [annotation]
    return [member for argument in arguments for member in _members(argument)]


class _Loader(yaml.SafeLoader):
    """YAML 1.2's reading of numbers and booleans: `1e-4` is a number, `no` and `on` are words."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # aliases are how a small file expands to gigabytes
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f'duplicate key "{key.value}"', problem_mark=key.start_mark)
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


def load_yaml(text: str, where: str) -> Any:
    """Read one YAML document of plain values.

    Raises:
        RecipeError: for bad syntax (with line and column), duplicate keys, aliases, tags that would
            construct objects, or a text above 1 MiB.
    """
    if len(text.encode("utf-8", "replace")) > MAX_YAML_BYTES:
        raise RecipeError(f"{where}: {len(text):,} characters; a recipe has at most {MAX_YAML_BYTES:,} bytes")
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or (str(error).splitlines() or ["unreadable"])[0]
        raise RecipeError(f"{where}: not valid YAML{at}: {problem}") from None


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


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(str, _represent_str)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Write plain values as YAML that `load_yaml` (and any YAML 1.1 reader) reads back unchanged."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
