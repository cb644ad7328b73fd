"""Images to features: the encoder of any release or model, and what it makes of any images."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo import hub
from zoo.config import Config, parse, plain_kind
from zoo.data import EvalView, ImageDataset, eval_images
from zoo.data.streamed import cannot_be_read
from zoo.errors import DataError, ReleaseError, ZooError, ZooWarning
from zoo.evaluation.models import check_encoder, preprocess_of, unwrapped
from zoo.modules import evaluating
from zoo.release import Preprocess, Release
from zoo.training import pick_device
from zoo.training.precision import float32_products
from zoo.training.progress import show_images

BATCH = 256
# On a CPU the activations of so many images stay near its caches: from 32 pixels on 1.2 to 1.5 times as fast
# as 256 at once (ResNets, one core); of smaller images 256 are as near.
CPU_BATCH, CPU_BATCH_FROM = 64, 32

A_MODEL = "a model"
"""What one is called that has no name."""


class Features(NamedTuple):
    """Encoded images in the order in which they came.

    Attributes:
        features: `[N, D]`, float32, on the CPU, as the model gave them (not normalised).
        labels: class indices `[N]`, int64, on the CPU; -1 for images that came without.
    """

    features: Tensor
    labels: Tensor


def extract(
    model: nn.Module,
    batches: Iterable[Tensor | Sequence[Tensor]],
    *,
    device: torch.device | str,
    progress: Callable[[int], object] | None = None,
) -> Features:
    """Encode `batches` with `model` in evaluation mode and without gradients.

    The model stays where it is moved (`device`), computes in the type of its own parameters whatever
    autocast surrounds the call, and leaves with each module in the mode it came in.

    Args:
        model: maps images `[B, 3, H, W]` to features `[B, D]`.
        batches: images `[B, 3, H, W]`, or sequences of images, labels `[B]` and what else a loader yields,
            which is not looked at.
        device: where to compute.
        progress: called after each batch with the number of images in it.

    Raises:
        DataError: when there is no image, a batch is something else, or the model's output is not `[B, D]`.
    """
    device = torch.device(device)
    model.to(device)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    parts: list[Features] = []
    # no_grad, not inference_mode: the features may well enter a differentiable loss later
    # a GPU's convolutions would round float32 to TensorFloat-32, and figures be others than a CPU's
    autocast = torch.autocast(device.type, enabled=False)
    with evaluating(model), torch.no_grad(), autocast, float32_products():
        for number, batch in enumerate(batches):
            images, labels = _parts_of(batch, number)
            output = model(images.to(device=device, dtype=dtype, non_blocking=True))
            if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(images):
                found = list(output.shape) if isinstance(output, Tensor) else plain_kind(output)
                raise DataError(
                    f"features: the model returned {found} for {len(images)} images, expected "
                    f"[{len(images)}, D] (a headless encoder with pooling: num_classes=0)"
                )
            parts.append(Features(output.float().cpu(), labels.long().cpu()))
            if progress is not None:
                progress(len(images))
    if not parts:
        raise DataError("features: the data set gave no batch, expected at least one image")
    return Features(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _parts_of(batch: object, number: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a batch of any loader."""
    if isinstance(batch, Tensor):
        batch = (batch,)
    parts = list(batch) if isinstance(batch, list | tuple) else []
    if parts and isinstance(parts[0], Tensor) and parts[0].ndim:
        if len(parts) == 1:
            return parts[0], torch.full((len(parts[0]),), -1)
        if isinstance(parts[1], Tensor) and parts[1].shape == parts[0].shape[:1]:
            return parts[0], parts[1]
    found = [list(each.shape) if isinstance(each, Tensor) else plain_kind(each) for each in parts]
    raise DataError(
        f"features: batch {number}: found {found or plain_kind(batch)}, expected images [B, 3, H, W], alone "
        "or in a sequence with labels [B]"
    )


def batch_size(device: torch.device, size: int) -> int:
    """Return how many images of `size` pixels are encoded at a time."""
    return CPU_BATCH if device.type == "cpu" and size >= CPU_BATCH_FROM else BATCH


class Encoder(NamedTuple):
    """What encodes images, and how they are made for it.

    Attributes:
        model: headless.
        preprocess: how images become its input.
        name: the weights' name; `A_MODEL` where there is none.
        release: None for a model.
        workers: processes that decode images in the release's own training; 0 for a model.
    """

    model: nn.Module
    preprocess: Preprocess
    name: str
    release: Release | None
    workers: int = 0

    @property
    def view(self) -> EvalView:
        """Size, crop and interpolation as the readers of images take them."""
        fields = {"crop_pct": self.preprocess.crop_pct, "interpolation": self.preprocess.interpolation}
        return parse(EvalView, {"size": self.preprocess.input_size, **fields}, self.name)


class _Views(Config):
    """What of a recipe's views is about reading images; those of a release may be of another version."""

    workers: Annotated[int, Field(ge=0)] = 0


def open_encoder(
    given: Release | nn.Module | str | Path,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    *,
    check: Callable[[nn.Module, int], object] = check_encoder,
) -> Encoder:
    """Return the encoder of a release, or a model itself.

    Args:
        given: a release, its name or folder, or a model.
        preprocess: of a model alone.
        check: called with a model and the size of its images.

    Raises:
        ZooError: for a model that ends in a classifier, names that mean nothing, or `preprocess` for a
            release.
    """
    if isinstance(given, nn.Module):
        model = unwrapped(given)
        view = preprocess_of(model, preprocess)
        check(model, view.input_size)
        return Encoder(model, view, A_MODEL, None)
    if preprocess is not None and isinstance(given, Release | str | Path):
        raise ZooError("preprocess: a release says itself how its images are made; expected it for a model")
    release = hub.open(given)
    recorded = release.recipe.get("views") or {}
    known = {key: recorded[key] for key in _Views.model_fields if key in recorded}
    views = parse(_Views, known, f"{release.name}: recipe.yaml: views", ReleaseError)
    return Encoder(release.load(), release.preprocess, release.name, release, views.workers)


def encode_images(
    dataset: ImageDataset,
    encoder: Encoder,
    *,
    device: str,
    workers: int | None,
    max_bad_images: int,
    doing: str,
) -> tuple[Features, dict[str, str]]:
    """Encode all images, showing progress; those that cannot be read are left out, up to a limit, and named.

    Args:
        dataset: the images.
        encoder: what encodes them.
        device: "auto", "cpu" or "cuda".
        workers: processes that decode; None: as many as the release's recipe says.
        max_bad_images: the limit.
        doing: what is done with the images, for the progress.

    Returns:
        Features, with the images' places in the data set for labels, ascending; and name and error of each
        image that was left out.

    Raises:
        DataError: for more unreadable images than the limit, with the first one's error, or nothing else.
        ZooError: for a device, number of workers or limit that cannot be.
    """
    check_number("workers", workers or 0, 0)
    check_number("max_bad_images", max_bad_images, 0)
    place = pick_device(device, "device")
    errors: dict[int, str] = {}
    view, how = encoder.view, encoder.preprocess

    def images() -> Iterator[tuple[Tensor, Tensor]]:
        batches = eval_images(
            dataset,
            view,
            how.mean,
            how.std,
            batch_size=batch_size(place, view.size),
            device=place,
            workers=encoder.workers if workers is None else workers,
            errors=errors,
        )
        for batch in batches:  # once there are too many, the others are only counted
            if len(errors) <= max_bad_images:
                yield batch
        if len(errors) > max_bad_images or len(errors) == len(dataset):
            said = cannot_be_read(dataset, errors)
            raise DataError(f"images: {said}; or leave them out: --max-bad-images {len(errors)}")

    with show_images(doing, len(dataset)) as progress:
        features, _ = extract(encoder.model, images(), device=place, progress=progress)
    read = torch.tensor([index for index in range(len(dataset)) if index not in errors], dtype=torch.int64)
    left_out = {dataset.name_of(index): error for index, error in errors.items()}
    if left_out:
        names = ", ".join(f'"{name}"' for name in left_out)
        warnings.warn(
            f"images: {len(left_out)} of {len(dataset):,} cannot be read and are left out: {names} "
            f"({next(iter(left_out.values()))})",
            ZooWarning,
            stacklevel=3,
        )
    return Features(features, read), left_out


def check_number(name: str, value: object, least: int) -> None:
    """Make sure that an argument is a whole number, of at least so many.

    Raises:
        ZooError: naming the argument and what was found.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ZooError(f"{name}: found {value!r}, expected {least} or more")
