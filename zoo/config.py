"""Strict configuration: pydantic models with one-line errors, and reading and writing of plain YAML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

import pydantic
import yaml
from pydantic_core import PydanticCustomError

from zoo.errors import RecipeError, ZooError, did_you_mean

MAX_YAML_BYTES = 1 << 18  # a recipe is a page; anything near this size is a mistake or an attack
MAX_YAML_DEPTH = 32


class Config(pydantic.BaseModel, defer_build=True):
    """Base of every section of a recipe: no unknown keys, no silent conversions, immutable.

    The docstring below a field is its description, which `zoo show KEY` prints.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        fields, forbids = cls.model_fields, cls.model_config.get("extra") == "forbid"
        for key in data if isinstance(data, Mapping) and forbids else ():
            if key not in fields:
                homes = [k for k in fields if key in getattr(fields[k].annotation, "model_fields", ())]
                hint = f' Did you mean "{homes[0]}.{key}"?' if homes else did_you_mean(key, fields)
                facts = {"key": str(key), "text": f"{hint} Valid keys: {', '.join(fields)}"}
                raise PydanticCustomError("unknown_key", "unknown key", facts)
        return data


def named_by(tag: str) -> pydantic.BeforeValidator:
    """Allow a section of a discriminated union to be given by its name alone: `crt` for `{name: crt}`."""
    return pydantic.BeforeValidator(lambda found: {tag: found} if isinstance(found, str) else found)


ConfigT = TypeVar("ConfigT", bound=Config)


def parse(schema: type[ConfigT], data: Any, where: str, error_type: type[ZooError] = RecipeError) -> ConfigT:
    """Validate plain `data` against `schema`.

    Raises:
        ZooError: an `error_type` that names `where`, the path of each wrong key, the value found, what
            pydantic expected, and the nearest valid key or word.
    """
    try:
        return schema.model_validate(data)
    except pydantic.ValidationError as error:
        problems = [_explain(data, item) for item in error.errors(include_url=False)]
    raise error_type(f"{where}: " + "; ".join(problems))


def _explain(data: Any, item: Any) -> str:
    """Return pydantic's message with the path as the user wrote it, the value found, and the nearest word."""
    kind, facts, keys, node = item["type"], item.get("ctx", {}), list[str](), data
    for part in item["loc"]:  # other parts are pydantic's names for the members of unions
        known = range(len(node)) if isinstance(node, list | tuple) else node
        if isinstance(node, list | tuple | Mapping) and part in known:
            keys.append(str(part))
            node = node[part]
    keys += [str(item["loc"][-1])] if kind == "missing" else []
    keys += [facts[each].strip("'") for each in ("discriminator", "key") if each in facts]
    path = ".".join(keys)
    if kind == "unknown_key":
        return f'unknown key "{path}".{facts["text"]}'
    if kind in ("missing", "union_tag_not_found"):
        return f'missing key "{path}"'
    if kind == "value_error":
        return f"{path}: ".removeprefix(": ") + str(item["msg"]).removeprefix("Value error, ")
    found = facts.get("tag", item["input"])
    expected = re.sub("^Input should be |^Input tag .* tags: ", "expected ", item["msg"])
    expected = expected.replace("a valid boolean", "true or false")
    expected = re.sub(r"a valid dictionary or instance of \w+", "a section, {KEY: VALUE, ...}", expected)
    hint = did_you_mean(found, re.findall(r"'([^']*)'", expected))
    text = f'"{path}": found {repr(found)[:80]} ({type(found).__name__}), {expected}.{hint}'
    return text.rstrip(".").removeprefix('"": ')


def listed(given: Sequence[Any]) -> Sequence[Any]:
    """Return the items of `*names`, which were passed one by one or as a single list."""
    return given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given


def type_name(value: object) -> str:
    """Return the type of a plain value with an article: "a list", "a dict", ...; "nothing" for None."""
    return "nothing" if value is None else f"a {type(value).__name__}"


def is_number(value: object) -> TypeGuard[float]:
    """Whether a plain value is an int or a float, including nan and inf but not bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def flatten(plain: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested sections, and lists of them, to dotted keys: `training.epochs`, `evaluation.0.k`."""
    nested = isinstance(plain, list) and any(isinstance(each, Mapping | list) for each in plain)
    items: Any = plain.items() if isinstance(plain, Mapping) else enumerate(plain) if nested else ()
    below = [flatten(value, f"{path}.{key}" if path else str(key)) for key, value in items]
    return {key: value for part in below for key, value in part.items()} or {path: plain}


_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser is ten times as fast


class _Loader(_Parser):  # type: ignore[misc]
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, count in counts.items() if count > 1]:
            raise yaml.MarkedYAMLError(problem=f'duplicate key "{twice[0]}"', problem_mark=node.start_mark)
        return dict(super().construct_mapping(node, deep))


class _Dumper(yaml.SafeDumper):
    """Writes mappings in block style, flat lists on one line, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        flat = not any(isinstance(value, list | dict) for value in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)


_Dumper.add_representer(list, _Dumper.represent_list)
_FLOAT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")  # 1e-4 is a number, as in YAML 1.2
for _class in (_Loader, _Dumper):  # the dumper, too, so that it quotes a string such as "1e-4"
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, [*"-+0123456789"])
for _first in "yYnNoO":  # yes, no, on and off stay strings, as in YAML 1.2: the first resolver is bool's
    del _Loader.yaml_implicit_resolvers[_first][0]


def load_yaml(text: str, where: str, error_type: type[ZooError] = RecipeError) -> Any:
    """Read one YAML document of plain values.

    Raises:
        ZooError: an `error_type` for bad syntax, duplicate keys, anchors, more than 256 KiB or 32 levels.
    """
    if (size := len(text.encode("utf-8", "replace"))) > MAX_YAML_BYTES:
        raise error_type(f"{where}: found {size:,} bytes, expected at most {MAX_YAML_BYTES:,}")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_Parser):  # check before building any value
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_YAML_DEPTH or getattr(event, "anchor", None):  # an alias carries its anchor's name
                mark: Any = event.start_mark  # its type differs between libyaml and PyYAML
                raise yaml.MarkedYAMLError(problem="found an anchor, or too many levels", problem_mark=mark)
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        advice = "; a value with * needs quotes" if "alias" in str(error) else ""
        raise error_type(f"{where}: not valid YAML{advice}: {' '.join(str(error).split())}") from None


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Write plain values as YAML that `load_yaml` (and any YAML 1.1 reader) reads back unchanged."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
