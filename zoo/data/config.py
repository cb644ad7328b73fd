"""The `data` and `views` sections of a recipe: images, augmentation, evaluation transform.

Nothing here imports torch. Defaults follow the literature.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from zoo.config import Config, load_yaml, named_by, parse
from zoo.data.ops import Interpolation, Op, PositiveInt, RandomResizedCrop, Share
from zoo.errors import DataError, did_you_mean

_ByKind = Field(discriminator="kind")
KINDS = ("digits", "cifar10", "cifar100", "folder", "list", "parquet")
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy's RandomState accepts
Triple = Annotated[list[float], Field(min_length=3, max_length=3)]
PositiveTriple = Annotated[list[Annotated[float, Field(ge=1e-4)]], Field(min_length=3, max_length=3)]


class Digits(Config):
    """scikit-learn's 1,797 built-in 8x8 digits: 125 of each class for training, the rest for testing."""

    kind: Literal["digits"] = "digits"


class TorchvisionSource(Config):
    """CIFAR from torchvision's archive in the data folder, or else from the Hub's parquet files there."""

    kind: Literal["cifar10", "cifar100"]
    download: bool = False
    """Download the archive into the data folder if that has neither the archive nor parquet files."""


class Folder(Config):
    """Folders `train/CLASS/IMAGE`, read as torchvision's ImageFolder does, without hidden files."""

    kind: Literal["folder"] = "folder"
    train: str = Field(default="train", description="Subfolder of the training images.")
    test: str = Field(default="val", description="Subfolder of the test images.")


class ListFiles(Config):
    """Text files with lines "path label", as for ImageNet-LT, Places-LT and iNaturalist, or CSV files."""

    kind: Literal["list"] = "list"
    train: str
    """List of the training images; a file that ends in .csv has the columns "path,label"."""
    test: str = Field(description="List of the test images.")


class Parquet(Config):
    """Parquet files in the Hub's image schema."""

    kind: Literal["parquet"] = "parquet"
    train: str = "train"
    """A file, a pattern, or a split: `train` means train.parquet, train-*.parquet and train/*.parquet."""
    test: str = Field(default="test", description="The same for the test images.")
    image: str = Field(default="img", description="Image column, {bytes, path} or plain bytes.")
    label: str = "label"
    """Column of integers or strings. If "img" or "label" is missing, the only column of its type is used."""


class Memory(Config):
    """Images in memory, which must be passed as `data` each time."""

    kind: Literal["memory"] = "memory"
    name: str = Field(description="Name of the data in tables.")
    sha256: str = Field(description="SHA-256 of labels and pixels, or of a sample of them.")


_Sources = Digits | TorchvisionSource | Folder | ListFiles | Parquet | Memory
Source = Annotated[_Sources, _ByKind, named_by("kind")]


class Holdout(Config):
    """Holds out a share of each class as test images, for data without a test split."""

    fraction: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of each class to hold out, rounded, at least one image; none of a class with a single image."""
    seed: Seed = Field(default=0, description="Seed of the draw.")


class LongTail(Config):
    """Makes the training split long-tailed: later classes keep fewer images; see `zoo.data.long_tail`."""

    profile: Literal["exponential"] = "exponential"
    """Images kept of class c of C: n_c = n_max / imbalance^(c / (C - 1)), rounded down."""
    imbalance: Annotated[float, Field(ge=1)] = Field(description="Largest / smallest class, >= 1.")
    seed: Seed = Field(default=0, description="Seed of the selection; the literature uses 0.")
    max_per_class: Annotated[int, Field(ge=1)] | None = Field(None, description="n_max; null: smallest size.")


class Subset(Config):
    """Keeps only a few labelled images of each class for training, drawn after the long tail."""

    fraction: Share | None = Field(None, description="Share of each class, rounded, at least one image.")
    per_class: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Images of each class.")
    seed: Seed = Field(default=0, description="Seed of the draw.")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.fraction is None) == (self.per_class is None):
            raise ValueError("subset: expected either fraction or per_class")
        return self


class Candidates(Config):
    """Adds random wrong labels to each image's candidates."""

    rate: Annotated[float, Field(ge=0, lt=1)]
    """Probability that a wrong label is a candidate; 0: the true label is known."""
    seed: Seed = Field(default=0, description="Seed of the draws.")


class UniformCandidates(Candidates):
    """Adds every wrong label to an image's candidates with probability `rate`."""

    kind: Literal["uniform"] = "uniform"


class GroupedCandidates(Candidates):
    """Adds wrong labels of the true label's group with probability `rate`, and no others."""

    kind: Literal["grouped"] = "grouped"
    groups: list[list[str]]
    """Class names in each group; every class of the data must be in exactly one group."""


class DataConfig(Config):
    """The images and how their pixels are normalised."""

    source: Source = Field(description="Where images and labels come from.")
    holdout: Holdout | None = Field(None, exclude_if=lambda value: value is None)  # as in older recipes
    """For a source without a test split: images held out for testing, before any other selection."""
    long_tail: LongTail | None = Field(default=None, description="Applies to the training split only.")
    subset: Subset | None = None
    """Trains on few labels: a part of each class, drawn after the long tail; training split only."""
    partial_labels: Annotated[UniformCandidates | GroupedCandidates, _ByKind] | None = None
    """Candidate classes for each training image instead of a single label; they include the true one."""
    mean: Triple = [0.485, 0.456, 0.406]
    """Mean of the red, green and blue channels, for values in 0..1. Default: ImageNet's."""
    std: PositiveTriple = Field(default=[0.229, 0.224, 0.225], description="Likewise.")
    image_size: PositiveInt | None = None
    """Side in pixels of the square that training images are scaled to on decoding; null: not scaled."""


def path_of(data: Any) -> Path | None:
    """Return a string or path as a path with `~` expanded; None for images in memory."""
    if isinstance(data, str) and not data:
        raise DataError('data: found "", expected a folder, file or spec; this folder is "."')
    return Path(os.path.expanduser(data)) if isinstance(data, str | Path) else None  # noqa: PTH111


def parse_data_spec(text: str) -> tuple[DataConfig, Path | None]:
    """Return the configuration and the data folder of a spec `KIND[:DIR][?key=value&...]`.

    Keys are those of the source, `LongTail` and `Subset`; `seed` applies to the latter two.
    Raises ZooError naming the invalid kind, key or value, and the nearest valid one.
    """
    where = f'data "{text}"'
    place, _, query = text.partition("?")
    kind, _, folder = place.partition(":")
    if kind not in KINDS:
        expected = f"expected one of these or a spec of {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}"
        raise DataError(f'data: found no folder or file "{text}", {expected}')
    given = dict(item.partition("=")[::2] for item in query.split("&") if item)
    values, keys = dict[str, Any](), {"long_tail": LongTail.model_fields, "subset": Subset.model_fields}
    for name, fields in keys.items():
        own = {key: load_yaml(given[key], where) for key in fields if key in given}
        if own.keys() - {"seed"}:
            values[name] = own
    drawn = {key for own in values.values() for key in own}
    own = {k: load_yaml(v, where) if k == "download" else v for k, v in given.items() if k not in drawn}
    values["source"] = {"kind": kind} | own
    return parse(DataConfig, values, where, DataError), path_of(folder) if folder else None


class EvalView(Config):
    """timm's evaluation transform: resize the shorter side to `size` / `crop_pct`, then crop the centre."""

    size: PositiveInt = Field(description="Side of the input in pixels.")
    crop_pct: Annotated[float, Field(ge=0.1, le=1)] = 0.875
    """Share of the resized image's side that the crop keeps; 1: all of it."""
    interpolation: Interpolation = Field("bilinear", description="With antialiasing; usually bilinear.")


class ViewsConfig(Config):
    """Augmentation in training, and preprocessing in evaluation."""

    backend: Literal["tensor", "stream"] = "tensor"
    """`tensor`: all images are decoded once and kept on the training device, where they are augmented in
    batches; they must have one size and fit into its memory. `stream`: worker processes decode and crop, and
    the other operations run in batches on the device."""
    workers: Annotated[int, Field(ge=0)] = Field(0, description="Processes of a rank, at most its cores.")
    cache: bool = False
    """Cache the images decoded for `tensor` in `$XDG_CACHE_HOME/zoo/decoded` for later runs."""
    train: Annotated[list[list[Op]], Field(min_length=1)]
    """One list of operations per view."""
    eval: EvalView = Field(description="Preprocessing that the released encoder expects.")

    @model_validator(mode="after")
    def _crops_first(self) -> Self:
        crops = [op for view in self.train for op in view[:1] if isinstance(op, RandomResizedCrop)]
        if self.backend == "stream" and len(crops) < len(self.train):
            raise ValueError("train: expected random_resized_crop first in each view of the backend stream")
        return self

    @property
    def train_sizes(self) -> list[int]:
        """Side of each training view in pixels, for views whose operations fix it."""
        sizes = [[op.size for op in view if hasattr(op, "size") and op.op != "cutout"] for view in self.train]
        return [fixed[-1] for fixed in sizes if fixed]
