"""Images to features, with any release or model: what `evaluate`, `embed` and `predict` share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo import hub
from zoo.api.given import check_number, check_workers
from zoo.api.models import check_encoder, preprocess_of, unwrapped
from zoo.config import Config, parse
from zoo.data import EvalView, ImageDataset, eval_images
from zoo.data.bad_images import unreadable
from zoo.errors import DataError, ReleaseError, ZooError, ZooWarning
from zoo.evaluation.encoded import batch_size
from zoo.evaluation.features import extract
from zoo.release import Preprocess, Release
from zoo.training import pick_device
from zoo.training.progress import show_images


class Encoding(NamedTuple):
    """Features of the images that could be read.

    Attributes:
        features: `[N, D]`, float32, on the CPU.
        places: of these images in the data set `[N]`, int64, ascending.
        left_out: name and error of each other one.
    """

    features: Tensor
    places: Tensor
    left_out: Mapping[str, str]


def opened(
    release: Release | str | Path, preprocess: Preprocess | Mapping[str, Any] | None = None
) -> Release:
    """Open a release, if it is not open yet, for which nobody has to say how its images are made.

    Raises:
        ZooError: for a `preprocess` beside it, and as `zoo.open`.
    """
    if preprocess is not None and isinstance(release, Release | str | Path):
        raise ZooError("preprocess: a release says itself how its images are made; expected it for a model")
    return release if isinstance(release, Release) else hub.open(release)


A_MODEL = "a model"
"""What one is called that has no name."""


class Encoder(NamedTuple):
    """What encodes images, and how they are made for it.

    Attributes:
        model: headless.
        preprocess: how images become its input.
        name: the weights' name; `A_MODEL` where there is none.
        release: None for a model.
    """

    model: nn.Module
    preprocess: Preprocess
    name: str
    release: Release | None


def find_encoder(
    given: Release | nn.Module | str | Path, preprocess: Preprocess | Mapping[str, Any] | None
) -> Encoder:
    """Return the encoder of a release, or a model itself.

    Raises:
        ZooError: for a model that ends in a classifier, and for names that mean nothing.
    """
    if isinstance(given, nn.Module):
        model = unwrapped(given)
        view = preprocess_of(model, preprocess)
        check_encoder(model, view.input_size)
        return Encoder(model, view, A_MODEL, None)
    release = opened(given, preprocess)
    return Encoder(release.load(), release.preprocess, release.name, release)


def view_of(preprocess: Preprocess) -> EvalView:
    """Return size, crop and interpolation as the readers of images take them."""
    return EvalView(
        size=preprocess.input_size,
        crop_pct=preprocess.crop_pct,
        interpolation=preprocess.interpolation,  # type: ignore[arg-type]
    )


class _Reading(Config):
    """What of a recipe's views is about reading images; those of a release may be of another version."""

    workers: Annotated[int, Field(ge=0)] = 0
    cache: bool = False


def reading_of(release: Release | None) -> _Reading:
    """Return how the release's own training read its images."""
    views = {} if release is None else release.recipe.get("views") or {}
    given = {key: views[key] for key in _Reading.model_fields if key in views}
    return parse(
        _Reading, given, f"{release.name if release else 'a model'}: recipe.yaml: views", ReleaseError
    )


def encode(
    dataset: ImageDataset,
    model: nn.Module,
    preprocess: Preprocess,
    *,
    release: Release | None,
    device: str,
    workers: int | None,
    max_bad_images: int,
    doing: str,
) -> Encoding:
    """Encode all images, showing progress; those that cannot be read are left out, up to a limit, and named.

    Args:
        dataset: the images.
        model: headless encoder.
        preprocess: how images become its input.
        release: that the encoder is of, whose recipe says how many workers decode; None: a model alone.
        device: "auto", "cpu" or "cuda".
        workers: processes that decode; None: as many as the recipe says.
        max_bad_images: the limit.
        doing: what is done with the images, for the progress.

    Raises:
        DataError: for more unreadable images than the limit, with the first one's error, or nothing else.
        ZooError: for a device, number of workers or limit that cannot be.
    """
    check_workers(workers)
    check_number("max_bad_images", max_bad_images, 0)
    place = pick_device(device, "device")
    reading = reading_of(release)
    errors: dict[int, str] = {}
    view = view_of(preprocess)

    def images() -> Iterator[tuple[Tensor, Tensor]]:
        yield from eval_images(
            dataset,
            view,
            preprocess.mean,
            preprocess.std,
            batch_size=batch_size(place, view.size),
            device=place,
            workers=reading.workers if workers is None else workers,
            max_bad_images=max_bad_images,
            cache=reading.cache,
            errors=errors,
        )
        if len(errors) > max_bad_images or len(errors) == len(dataset):
            raise DataError(unreadable(dataset, errors, max_bad_images))

    with show_images(doing, len(dataset)) as progress:
        features, _ = extract(model, images(), device=place, count=len(dataset), progress=progress)
    read = [index for index in range(len(dataset)) if index not in errors]
    left_out = {dataset.name_of(index): error for index, error in errors.items()}
    if left_out:
        names = ", ".join(f'"{name}"' for name in left_out)
        warnings.warn(
            f"images: {len(left_out)} of {len(dataset):,} cannot be read and are left out: {names} "
            f"({next(iter(left_out.values()))})",
            ZooWarning,
            stacklevel=3,
        )
    return Encoding(features, torch.tensor(read, dtype=torch.int64), left_out)
