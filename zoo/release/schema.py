"""What `config.json` may hold: the keys that `write_release` writes, each of its type, and nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from zoo.config import Config, parse
from zoo.errors import ReleaseError

FORMAT = 1
LIBRARY = "contrastive-zoo"
"""What the Hub is told, and the tag that releases carry."""
NEWER = f"; a newer zoo may have written it: pip install --upgrade {LIBRARY}"
MAX_DEPTH = 16  # of the nesting inside `dataset`; far above what anybody writes
MAX_PIXELS = 4096  # of an input's side, and of the image that it is cropped from
MAX_NAME = 96  # characters of a release's name: the Hub's bound
MAX_ARGUMENT = 1 << 14  # of a number in `model_args`: above every width, depth and size in timm
MAX_LENGTH = 256  # of a section, and of a list or word in `model_args`

# Keys that have timm or transformers run code, or read another file or address than the release's own.
OUTSIDE = frozenset(
    {"auto_map", "checkpoint_path", "custom_pipelines", "file", "hf_hub_filename", "hf_hub_id", "pretrained"}
    | {"pretrained_cfg_overlay", "source", "state_dict", "trust_remote_code", "url"}
)

_Text = Annotated[str, Field(max_length=10_000)]
_SHA256 = r"^[0-9a-f]{64}$"
_Sha256 = Annotated[str, Field(pattern=_SHA256)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=MAX_NAME)]
_Fraction = Annotated[float, Field(gt=0, le=1)]
_Channels = Annotated[list[float], Field(min_length=3, max_length=3)]
_Width = Annotated[int, Field(gt=0, le=1 << 20)]
_Side = Annotated[int, Field(gt=0, le=MAX_PIXELS)]
_Modules = _Text | Annotated[list[_Text], Field(fail_fast=True)] | None
_Classes = Annotated[list[_Text], Field(fail_fast=True)]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a terminal would obey them; "\t" and "\n" may stay


class _Pixels(Config):
    """What becomes of an image's pixels, in timm's terms, whatever its size."""

    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
    crop_pct: _Fraction
    mean: _Channels
    std: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=3, max_length=3)]

    def _check_resized(self, side: int) -> None:
        resized = side / self.crop_pct
        if resized > MAX_PIXELS:
            raise ValueError(
                f"crop_pct: images would be resized to {resized:.4g} pixels, at most {MAX_PIXELS}"
            )


class Input(_Pixels):
    """The fields of `Preprocess`, where a user gives them."""

    input_size: _Side
    interpolation: Literal["bilinear", "bicubic"]

    @model_validator(mode="after")
    def _bounded(self) -> Input:
        self._check_resized(self.input_size)
        return self


class _PretrainedCfg(_Pixels):
    """timm's part: where the model's ends are, and how an image becomes its input."""

    tag: _Text
    custom_load: bool
    input_size: Annotated[list[_Side], Field(min_length=3, max_length=3)]
    fixed_input_size: bool
    crop_mode: Literal["center", "squash", "border"]
    first_conv: _Modules
    classifier: _Modules
    license: _Text

    @field_validator("custom_load", mode="before")
    @classmethod
    def _no_loader(cls, value: object) -> object:
        if value is not False:
            raise ValueError(f"found {value!r}, expected false: a release never needs a loader of its own")
        return value

    @model_validator(mode="after")
    def _bounded(self) -> _PretrainedCfg:
        if self.input_size[0] != 3:
            raise ValueError(f"input_size: found {self.input_size[0]} channels, expected 3")
        self._check_resized(max(self.input_size))
        return self


class _ClassCounts(Config):
    """Training images of the most and the least frequent class."""

    largest: Annotated[int, Field(ge=0)]
    smallest: Annotated[int, Field(ge=0)]


class _Dataset(Config):
    """What of a data set's facts a card computes with."""

    hub_id: _Text | None = None
    num_images: Annotated[int, Field(ge=0)] | None = None
    num_classes: Annotated[int, Field(ge=0)] | None = None
    class_counts: _ClassCounts | None = None


class _Zoo(Config):
    """The part of this project."""

    format: Literal[1]
    name: _Name
    objective: _Name
    dataset: dict[str, Any]
    description: _Text
    feature_dim: _Width
    has_centers: bool
    recipe_sha256: _Sha256 | None
    weights_sha256: _Sha256 | None
    centers_sha256: _Sha256 | None
    images_sha256: _Sha256 | None = None  # releases of before there were lists lack the key
    class_names: _Classes | None = None

    @model_validator(mode="after")
    def _centers(self) -> _Zoo:
        if self.has_centers != (self.centers_sha256 is not None):
            raise ValueError(
                f"centers_sha256: found {self.centers_sha256!r}, but has_centers is {self.has_centers}"
            )
        return self


class _ReleaseConfig(Config):
    """`config.json` as a whole."""

    architecture: Annotated[str, Field(pattern=r"^\w+$", max_length=200)]  # no "hf-hub:" and no ".tag"
    num_classes: Annotated[int, Field(ge=0)]
    num_features: _Width
    model_args: dict[str, Any]
    pretrained_cfg: _PretrainedCfg
    label_names: _Classes | None = None
    dtype: Literal["float32"] | None = None  # beside float16 weights, in which transformers would compute
    zoo: _Zoo

    @model_validator(mode="after")
    def _classifier(self) -> _ReleaseConfig:
        labels = 0 if self.label_names is None else len(self.label_names)
        if labels != self.num_classes:
            raise ValueError(f"label_names: found {labels}, but num_classes is {self.num_classes}")
        if (self.zoo.class_names is None) != (self.num_classes > 0):
            expected = "label_names instead" if self.num_classes else "a list, as there are no label_names"
            raise ValueError(f"zoo.class_names: expected {expected}")
        if self.zoo.has_centers and self.num_classes and not isinstance(self.pretrained_cfg.classifier, str):
            raise ValueError(
                f"pretrained_cfg.classifier: found {self.pretrained_cfg.classifier!r}, expected the name of"
                f" the layer that gives {self.num_classes} classes"
            )
        return self


class Example(Config):
    """What `metrics.json` has of a picture that the card shows."""

    credit: Annotated[str, Field(min_length=1, max_length=1000)]
    top: dict[_Text, Annotated[float, Field(ge=0)]]  # probability by class, most probable first


def check(config: Mapping[str, Any], where: str) -> None:
    """Make sure that `config` is one that `write_release` could have written.

    Unknown keys are refused at every level, and so is what names code, other files, or sizes that no model
    has. Whether the architecture exists and takes its arguments is seen when it is built.

    Raises:
        ReleaseError: naming the key, what was found and what was expected.
    """
    for name in ("", "pretrained_cfg", "model_args", "zoo"):
        section = config.get(name) if name else config
        if not isinstance(section, Mapping):
            continue  # which the schema refuses
        if len(section) > MAX_LENGTH:
            raise ReleaseError(f'{where}: found {len(section)} keys in "{name}", expected a few')
        for key in section:
            if key in OUTSIDE:
                full = f"{name}.{key}".lstrip(".")
                raise ReleaseError(f'{where}: "{full}" asks for code, or for a file outside the release')
    check_words(config, where)
    zoo = config.get("zoo")
    if isinstance(zoo, Mapping) and isinstance(zoo.get("dataset"), Mapping):
        check_dataset(zoo["dataset"], f"{where}: zoo.dataset")
    try:
        parse(_ReleaseConfig, config, where, ReleaseError)
    except ReleaseError as error:
        unknown = isinstance(zoo, Mapping) and {*zoo} - {*_Zoo.model_fields}
        if not unknown:
            raise
        raise ReleaseError(f"{error}{NEWER}") from None


def check_words(data: Mapping[str, Any], where: str) -> None:
    """Make sure that nothing in plain `data` is nested absurdly or holds characters that a terminal obeys.

    Raises:
        ReleaseError: naming the key.
    """
    for path, value in _walk(data, ()):
        problem = _problem(value, in_arguments=path[:1] == ("model_args",))
        if problem or len(path) > MAX_DEPTH:
            shown = ".".join(path)[:200]
            raise ReleaseError(f'{where}: "{shown}": {problem or "nested too deeply"}')


def is_sha256(text: str) -> bool:
    """Whether `text` is one in hexadecimal digits, as releases write them."""
    return re.fullmatch(_SHA256, text) is not None


def check_dataset(dataset: Mapping[str, Any], where: str) -> None:
    """Make sure of those facts about a data set that a card computes with; others may be anything.

    Raises:
        ReleaseError: beginning with `where`, and naming the fact.
    """
    facts = {key: dataset[key] for key in _Dataset.model_fields if dataset.get(key) is not None}
    parse(_Dataset, facts, where, ReleaseError)


def _walk(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield everything inside `value`, keys too, with its path; nothing below one level too many."""
    yield path, value
    if len(path) > MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield path, key
            yield from _walk(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(item, (*path, str(index)))


def _problem(value: object, in_arguments: bool) -> str:
    """Say what is wrong with one value; '' when nothing is."""
    if isinstance(value, str) and _CONTROL.search(value):
        return f"found control characters, {value[:40]!r}"
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return "found a number of more than 63 bits"
    if isinstance(value, float) and not math.isfinite(value):  # JSON's 1e999
        return f"found {value}, expected a finite number"
    if in_arguments:
        if isinstance(value, int | float) and not abs(value) <= MAX_ARGUMENT:
            return f"found {str(value)[:12]}, expected at most {MAX_ARGUMENT}"
        if isinstance(value, str | list | tuple) and len(value) > MAX_LENGTH:
            return f"found {len(value)} items, expected at most {MAX_LENGTH}"
    return ""
