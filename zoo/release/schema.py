"""Schemas of a release's JSON files, as pydantic models, and formatting of its metrics. Imports no torch.

Unknown keys of `config.json` are refused, except in `zoo.dataset`, so that none can name code or a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from zoo.config import Config, is_number, parse
from zoo.errors import UNPRINTABLE, ReleaseError

LIBRARY = "contrastive-zoo"  # library name on the Hub, and a tag of every release
MAX_NAME = 96  # characters of a release's name: the Hub's limit
MAX_PIXELS = 4096  # of an input's height or width
_MULTILINE = (("description",), ("credit",))  # keys whose values may have several lines
_MAX_ARGUMENT = 1 << 14  # largest number in `model_args`: above every width, depth and size in timm
LONGEST_NAME = 10_000
CLASS_NAMES = f"words in UTF-8 without control characters, at most {LONGEST_NAME:,} characters long"

ACCURACIES = {name: name for name in ("accuracy", "balanced_accuracy", "many", "medium", "few")}
ACCURACIES["balanced_accuracy"] = "balanced"
"""Top-1 accuracies in percent, in the order of every table, with their heading."""
PREFERRED = ("classifier", "linear_full", "linear", "knn")
"""Protocols in order of preference, for tables that show one figure per release or run."""

_RECALL = re.compile(r"recall_at_([1-9][0-9]{0,8})")
_Text = Annotated[str, Field(max_length=LONGEST_NAME)]
_Texts = Annotated[list[_Text], Field(fail_fast=True)]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=MAX_NAME)]
_Count = Annotated[int, Field(ge=0)]
_Width = Annotated[int, Field(gt=0, le=1 << 20)]
_Side = Annotated[int, Field(gt=0, le=MAX_PIXELS)]
_CropMode = Literal["center", "squash", "border"]
_CropPct = Annotated[float, Field(ge=0.1, le=1)]
_Mean = Annotated[tuple[float, float, float], Field(strict=False)]  # a list, too
_Deviation = Annotated[float, Field(ge=1e-4)]
_Std = Annotated[tuple[_Deviation, _Deviation, _Deviation], Field(strict=False)]


class Input(Config):
    """The fields of `Preprocess`, as a user gives them."""

    input_size: _Side
    interpolation: Literal["bilinear", "bicubic"]
    crop_pct: _CropPct
    mean: _Mean
    std: _Std
    crop_mode: _CropMode = "center"


class _PretrainedCfg(Config):
    tag: _Text
    custom_load: Literal[False]  # a release never needs a loader of its own
    input_size: Annotated[tuple[Literal[3], _Side, _Side], Field(strict=False)]
    fixed_input_size: bool
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
    crop_pct: _CropPct
    crop_mode: _CropMode
    mean: _Mean
    std: _Std
    first_conv: _Text | _Texts | None
    classifier: _Text | _Texts | None
    license: Annotated[str, Field(pattern="[A-Za-z0-9]", max_length=200)]  # a name, not the text


class _Dataset(Config, extra="allow"):
    hub_id: _Text | None = None
    num_images: _Count | None = None
    num_classes: _Count | None = None
    class_counts: dict[Literal["largest", "smallest"], _Count] | None = None


class _Zoo(Config):
    format: Literal[1]
    name: _Name
    objective: _Name
    dataset: _Dataset
    description: _Text
    feature_dim: _Width
    has_centers: bool
    recipe_sha256: _Sha256 | None
    weights_sha256: _Sha256 | None
    centers_sha256: _Sha256 | None
    images_sha256: _Sha256 | None = None
    class_names: _Texts | None = None


class ReleaseConfig(Config):
    """`config.json`: timm's keys, and "zoo"."""

    architecture: Annotated[str, Field(pattern=r"^\w+$", max_length=200)]  # no "hf-hub:" and no ".tag"
    num_classes: _Count
    num_features: _Width
    model_args: dict[str, Any]
    pretrained_cfg: _PretrainedCfg
    label_names: _Texts | None = None
    dtype: Literal["float32"] | None = None  # for float16 weights, in which transformers would compute
    zoo: _Zoo

    @model_validator(mode="after")
    def _agree(self) -> ReleaseConfig:
        if (labels := len(self.label_names or ())) != self.num_classes:
            raise ValueError(f"label_names: found {labels}, but num_classes is {self.num_classes}")
        return self


class Evaluation(Config, extra="allow"):
    """An entry of `metrics.json`; see `checked_evaluation` for its metrics."""

    protocol: _Text
    data: _Text
    split: _Text
    metrics: dict[str, Any]
    settings: dict[str, Any] | None = None
    train_set: dict[str, Any] | None = None
    test_set: _Dataset | None = None
    own: bool | None = None  # see `is_own`
    seed: int | None = None


class Metrics(Config, extra="allow"):
    """`metrics.json`."""

    training: dict[str, Any]
    evaluations: list[dict[str, Any]]
    example: dict[Literal["credit", "top"], _Text | dict[_Text, float]] | None = None


class History(Config):
    """`history.json`; see `zoo.release.provenance`."""

    format: Literal[1]
    rows: Annotated[list[_Count], Field(min_length=1)]
    columns: dict[str, list[float | None]]
    classes: list[dict[str, Any]]

    @model_validator(mode="after")
    def _same_length(self) -> History:
        columns, rows = self.columns, len(self.rows)
        if not {"step", "epoch"} <= columns.keys() or {len(each) for each in columns.values()} != {rows}:
            raise ValueError(f"columns: expected step, epoch and others, {rows} values in each")
        return self


def check(kind: type[Config], data: object, where: str) -> None:
    """Validate plain `data`; a `ReleaseError` names the key, what was found and what was expected."""
    check_words(data, where)
    parse(kind, data, where, ReleaseError)


def check_words(data: object, where: str, path: tuple[str, ...] = ()) -> None:
    """Raise a `ReleaseError` for control characters, nan, inf, too large numbers or too deep nesting."""
    problem = "nested too deeply" if len(path) > 32 else ""
    if isinstance(data, str):
        text = data.replace("\n", "").replace("\t", "") if path[-1:] in _MULTILINE else data
        problem = f"found control characters, {data[:40]!r}" if UNPRINTABLE.search(text) else ""
    elif isinstance(data, int | float):
        most = _MAX_ARGUMENT if path[:1] == ("model_args",) else (1 << 63) - 1
        if not abs(data) <= most:  # also true for nan
            problem = f"found {str(data)[:20]}, expected a number of at most {most}"
    if problem:
        raise ReleaseError(f'{where}: "{".".join(path)[:200]}": {problem}')
    inside = dict(enumerate(data)) if isinstance(data, list | tuple) else data
    for key, value in inside.items() if isinstance(inside, Mapping) else ():
        check_words(str(key), where, path)
        check_words(value, where, (*path, str(key)))


def invalid_class_name(names: Sequence[object]) -> int | None:
    """Return the index of the first name that cards or terminals cannot show; None if they can show all."""
    for index, name in enumerate(names):
        if not (isinstance(name, str) and 0 < len(name.strip()) <= LONGEST_NAME) or UNPRINTABLE.search(name):
            return index
    return None


def recall_k(name: str) -> int | None:
    """Return the k of a recall@k metric such as `recall_at_8`; None for any other metric."""
    return int(recall[1]) if (recall := _RECALL.fullmatch(name)) else None


def in_order(names: Iterable[str]) -> list[str]:
    """Return the metrics that cards and tables show, without duplicates, in column order."""
    given = {*names}
    recalls = sorted(filter(_RECALL.fullmatch, given), key=lambda name: (len(name), name))
    return [name for name in (*ACCURACIES, "calibration_error", *recalls, "map") if name in given]


def metric_title(name: str) -> str:
    """Return a card's title for a metric of `in_order`."""
    titles = {**ACCURACIES, "calibration_error": "calibration error"}
    return "mAP" if name == "map" else (titles.get(name) or f"recall@{recall_k(name)}").capitalize()


def headline(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's `metric` and `value`: the first numeric one `in_order`; None if there is none."""
    name = next((name for name in in_order(metrics) if is_number(metrics[name])), None)
    return {"metric": name, "value": None if name is None else metrics[name]}


def checked_evaluation(entry: object, where: str) -> dict[str, Any]:
    """Validate an entry, and return it with `metric`, `value`, `seed` and `date` filled in.

    `metric` and `value` are always derived from `metrics`. NumPy and torch numbers become Python's.
    A `ReleaseError` that starts with `where` names what is missing or of the wrong type.
    """
    try:
        plain = json.loads(json.dumps(entry, default=lambda value: value.item()))  # of NumPy or torch
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ReleaseError(f"{where}: cannot be recorded as JSON: {error}") from None
    check(Evaluation, plain, where)
    metrics = plain["metrics"]
    for name, value in metrics.items():
        if in_order([name.removesuffix("_interval")]) and not (value is None or is_number(value)):
            raise ReleaseError(f'{where}: "metrics.{name}": found {value!r:.40}, expected a number')
    return {**plain, **headline(metrics), "seed": plain.get("seed"), "date": plain.get("date")}


def identity(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of an evaluation: a later evaluation with an equal key replaces the earlier one."""
    sets = [(entry.get(name) or {}).get("sha256") for name in ("train_set", "test_set")]
    settings = entry.get("settings") or {}
    return (entry["protocol"], entry["data"], entry["split"], settings, entry.get("seed"), sets)


def is_own(entry: Mapping[str, Any], data: str) -> bool:
    """Whether an evaluation is on the release's own data, named `data`; older entries have only the name."""
    return bool(entry.get("own", (entry["data"], entry["split"]) == (data, "test")))


def split_words(entry: Mapping[str, Any]) -> str:
    """Return an evaluation's split, with the number of classes if it is limited to some."""
    measured, of = entry.get("classes_measured"), (entry.get("test_set") or {}).get("num_classes", "?")
    return f"{entry['split']}, {measured} of {of} classes" if measured else str(entry["split"])
