"""`zoo.convert`: other projects' checkpoints, with labels and class counts from files or data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from zoo.data import ImageDataset, open_dataset, parse_data_spec
from zoo.data.labels import is_whole
from zoo.errors import DataError, ReleaseError, ZooError
from zoo.files import is_dir, is_file, read_text
from zoo.release import Release
from zoo.release.convert import (
    FAMILIES,
    PUBLISHED,
    Encoder,
    Preprocessing,
    convert_checkpoint,
    fetch,
    published,
)

_IMAGENET = "ImageNet-1k"  # what all published checkpoints that are known here were trained on
_MOST_BYTES = 64 << 20  # of a file of labels or counts: many times what a million classes need


def convert(
    file: str | Path,
    family: str | None = None,
    out: str | Path | None = None,
    *,
    arch: str | None = None,
    name: str | None = None,
    encoder: Encoder = "query",
    model_args: Mapping[str, Any] | None = None,
    labels: Sequence[str] | str | Path | None = None,
    class_counts: Sequence[int] | str | Path | None = None,
    size: int | None = None,
    crop_pct: float | None = None,
    interpolation: Literal["bilinear", "bicubic"] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dataset: str | None = None,
    license: str | None = None,
    description: str | None = None,
    leave_out: Sequence[str] = (),
) -> Release:
    """Make a release of a checkpoint that another project's code has written.

    Nothing in the file is executed. Every key is understood or the conversion fails: what is not released,
    such as heads, queues and the other encoder, is listed in recipe.yaml under `converted.left_out`.

    Args:
        file: a checkpoint of torch.save, or .safetensors; also an encoder by itself, e.g. of torchvision's
            names, whose classifier is then left out (but for "timm"): nothing says what it was trained for.
            Or the name of a checkpoint that its authors publish, "resnet50.moco_v2_800ep", which is then
            fetched: see `zoo.release.convert.PUBLISHED`.
        family: whose layout it has: "moco" (v1, v2), "moco-v3", "paco", "gpaco", "ft" (and PyContrast),
            "pico", "lightly" or "solo-learn"; "timm" for a state dict of any timm model, whoever trained it:
            `arch` has to be given, and its classifier, if there is one, becomes the centers. Known of a
            published checkpoint, and so are its arch, name and data.
        out: the release folder to make; `runs/NAME` when None.
        arch: the encoder's architecture in timm, e.g. "resnet50", "cifar_resnet32", "vit_small_patch16_224";
            one that the family's authors use, for others of the same shapes compute something else. When
            None, what the file names where that fits, else the only one of the family's that fits.
        name: of the weights, `arch.tag`; made of arch, family and the file's name when None.
        encoder: "query" for the trained encoder, "momentum" for its moving average (key encoder, teacher).
        model_args: arguments of the architecture, e.g. `{"img_size": 32, "patch_size": 4}`. What the family
            implies, e.g. the 12 heads of MoCo v3's ViT-S, is known.
        labels: names of the centers' classes: themselves, a text file with one a line, or a data spec whose
            classes they are; "0", "1", ... when None.
        class_counts: training images of each class: themselves, a text file with one a line, or a data spec
            whose training split is counted; -1, unknown, when None.
        size: pixels of the input, where they are not the authors'; so too:
        crop_pct: part of the resized image that the central crop keeps.
        interpolation: "bilinear" or "bicubic".
        mean: of each channel, for pixels in [0, 1].
        std: of each channel.
        dataset: what the encoder was trained on, in words; "not recorded" when None.
        license: of the weights, as the Hub writes it, or another one's name; that of the authors' repository
            when None, so give yours for weights of your own.
        description: the card's paragraph; written from the facts when None.
        leave_out: keys of the file to leave out although they are unknown, or shell patterns of them, such as
            "decoder.*" or "*.attn_mask".

    Raises:
        ReleaseError: when the file cannot be fetched, or read without running its code; for keys that are
            not understood, missing or of another shape, listing them and the family or architecture that
            fits; without `arch`, when several fit or none does.
        ZooError: for an unknown architecture, or labels and counts that cannot be read.
    """
    if not is_file(file) and (family is None or str(file) in PUBLISHED):
        entry = published(str(file))
        family, arch, name = family or entry.family, arch or entry.arch, name or str(file)
        dataset = _IMAGENET if dataset is None else dataset
        file = fetch(str(file))
    if family is None:
        raise ReleaseError(f"{file}: whose layout? Give its family, one of {', '.join(FAMILIES)}: --family")
    return convert_checkpoint(
        file,
        family,
        out,
        arch=arch,
        name=name,
        encoder=encoder,
        model_args=model_args,
        labels=_labels(labels) if isinstance(labels, str | Path) else labels,
        class_counts=_counts(class_counts) if isinstance(class_counts, str | Path) else class_counts,
        preprocessing=Preprocessing(size, crop_pct, interpolation, _channels(mean), _channels(std)),
        dataset="not recorded" if dataset is None else dataset,
        license=license,
        description=description,
        leave_out=leave_out,
    )


def _channels(given: Any) -> tuple[Any, ...] | None:
    """Return what may be an array as plain numbers; whether they are some is checked with the rest."""
    if given is None:
        return None
    values = given.tolist() if hasattr(given, "tolist") else given
    listed = values if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    return tuple(value.item() if hasattr(value, "item") else value for value in listed)


def _labels(source: str | Path) -> Sequence[str]:
    lines = _lines(source, "labels")
    return _train_set(source, "labels").class_names if lines is None else lines


def _counts(source: str | Path) -> list[int]:
    lines = _lines(source, "class counts")
    if lines is None:
        return [int(count) for count in _train_set(source, "class counts").class_counts]
    wrong = [line for line in lines if not is_whole(line)]
    if wrong:
        raise DataError(f'class counts: {source}: found "{wrong[0][:80]}", expected one whole number a line')
    return [int(line) for line in lines]


def _lines(source: str | Path, what: str) -> list[str] | None:
    """Return the lines of a text file that are not empty, or None when there is no such file."""
    path = Path(source)
    try:
        text = read_text(path, _MOST_BYTES) if is_file(path) else None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what}: {source}: cannot be read: {error}") from None
    return None if text is None else [line.strip() for line in text.splitlines() if line.strip()]


def _train_set(spec: str | Path, what: str) -> ImageDataset:
    """Open the data that a spec names: a word also where a folder is called so, unless that is a `Path`."""
    folder = (
        f"{what}: {spec}: found a folder, expected a text file with one a line, or a data spec, KIND:DIR; "
        f"that of images in folders of their class is folder:{spec}"
    )
    if isinstance(spec, Path) and is_dir(spec):
        raise DataError(folder)
    try:
        config, root = parse_data_spec(str(spec))
        return open_dataset(config, "train", root)
    except ZooError as error:
        raise DataError(folder if is_dir(spec) else f"{what}: no file, and no data spec: {error}") from None
