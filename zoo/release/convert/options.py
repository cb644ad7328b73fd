"""What the user says about a conversion, checked before the long work: a file can have gigabytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from zoo.class_names import EXPECTED, LONGEST, first_unfit
from zoo.config import parse
from zoo.errors import ReleaseError
from zoo.release.convert.listing import shown
from zoo.release.convert.preprocessing import Preprocessing
from zoo.release.schema import MAX_NAME, Input

_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,{MAX_NAME - 1}}}")
_ANY = {"input_size": 1, "crop_pct": 1.0, "interpolation": "bilinear", "mean": [0.0] * 3, "std": [1.0] * 3}
_SUFFIXES = re.compile(r"(\.(pth|pt|tar|ckpt|bin|safetensors|th))+$", re.IGNORECASE)


def check_name(name: str, arch: str | None) -> None:
    """Make sure that a release and a repository on the Hub can be named so."""
    if not _NAME.fullmatch(name):
        raise ReleaseError(
            f'name: found "{shown(name)}", expected at most {MAX_NAME} letters, digits, "_", "-" and ".", of '
            f'which the first is no "-" and no ".", e.g. "{arch or "resnet50"}.mine"'
        )


def check_texts(**texts: str | None) -> None:
    """Make sure that the card's texts are not too long."""
    for option, text in texts.items():
        if text is not None and len(text) > LONGEST:
            raise ReleaseError(f"{option}: found {len(text):,} characters, expected at most {LONGEST:,}")


def check_labels(labels: Sequence[str]) -> None:
    """Make sure that class names are words which can be printed."""
    index = first_unfit(labels)
    if index is not None:
        raise ReleaseError(
            f'labels: the one of class {index} is "{shown(labels[index])}", expected {EXPECTED}'
        )


def check_counts(counts: Sequence[Any]) -> None:
    """Make sure that images can be counted so."""
    for index, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, Integral) or not 0 <= int(count) < 1 << 63:
            raise ReleaseError(
                f"class counts: found {shown(repr(count))} of class {index}, expected a whole number from 0"
            )


def check_preprocessing(given: Preprocessing) -> None:
    """Make sure of the numbers and words that do not depend on the encoder."""
    own = given._asdict()
    own["input_size"] = own.pop("size")
    known = {key: value for key, value in own.items() if value is not None}
    plain = {key: [*value] if isinstance(value, tuple) else value for key, value in known.items()}
    parse(Input, _ANY | plain, "preprocessing", ReleaseError)


def default_name(arch: str, family: str, file: str) -> str:
    """Return `arch.tag` for a release, the tag made of the family and what the file's name adds."""
    words = [word for word in re.split(r"[^a-z0-9]+", _SUFFIXES.sub("", file).lower()) if word]
    own = [word for word in re.split(r"[^a-z0-9]+", family) if word]
    skipped = {*own, "checkpoint", "model", "pth", "tar", "ckpt", "pretrain", *re.split(r"[^a-z0-9]+", arch)}
    name = f"{arch}.{'_'.join([*own, *(word for word in words if word not in skipped)])}"
    return name[:MAX_NAME].rstrip("_")
