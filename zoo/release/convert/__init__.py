"""Checkpoints of other projects: read without running their code, understood key by key, made a release."""

from zoo.release.convert.authors import PUBLISHED, Published, fetch, published
from zoo.release.convert.convert import (
    UNKNOWN_COUNT,
    ConvertedRecipe,
    Encoder,
    Source,
    convert_checkpoint,
)
from zoo.release.convert.families import FAMILIES, Family, Layout
from zoo.release.convert.preprocessing import Preprocessing
from zoo.release.convert.reading import read_checkpoint
from zoo.release.convert.rules import Part

__all__ = [
    "FAMILIES",
    "PUBLISHED",
    "UNKNOWN_COUNT",
    "ConvertedRecipe",
    "Encoder",
    "Family",
    "Layout",
    "Part",
    "Preprocessing",
    "Published",
    "Source",
    "convert_checkpoint",
    "fetch",
    "published",
    "read_checkpoint",
]
