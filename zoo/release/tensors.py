"""The parts of a release that need torch: RGB pixels, weights and their model, centers, lists of images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from zoo import backbones
from zoo.errors import DataError, ReleaseError, ZooError
from zoo.modules.centers import Centers
from zoo.release import format


class ImageList(NamedTuple):
    """The images of a split, in order."""

    ids: NDArray[np.int64]  # [N], what `zoo.data.dataset.content_ids` gives for each image
    sha256: str  # of names and labels in the copy that was listed, see `ImageDataset.describe`


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB exactly as timm does, by `image.convert("RGB")`; the EXIF orientation is NOT applied.

    A ValueError refuses grey that is not whole numbers of 8 bits, which `convert` clips to white or black.
    """
    if image.mode == "RGB":
        image.load()  # Image.open is lazy: a truncated file must fail here
        return image
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        with np.errstate(invalid="ignore"):  # NaN
            grey = values.astype(np.uint8)
        if not np.array_equal(grey, values):
            raise ValueError(f"grey values {values.min()}..{values.max()}, expected whole numbers 0..255")
        return Image.fromarray(grey).convert("RGB")
    return image.convert("RGB")


def rgb(image: Image.Image) -> Image.Image:
    """Convert a user's image as `to_rgb` does; a `DataError` refuses what is none, and what that refuses."""
    if not isinstance(image, Image.Image):
        raise DataError(f"image: found a {type(image).__name__}, expected a PIL image: Image.open(FILE)")
    try:
        return to_rgb(image)
    except ValueError as error:
        raise DataError(f"image: {error}") from None


def round_to_half(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """Return the tensors rounded to what float16 holds, in the precision they have; None is left out.

    A `ReleaseError` names a tensor with a number beyond float16's range.
    """
    given = {name: each for name, each in tensors.items() if each is not None}
    rounded = {k: v.half().to(v) if v.is_floating_point() else v for k, v in given.items()}
    if beyond := [name for name, each in rounded.items() if each.isinf().any()]:
        raise ReleaseError(f"{beyond[0]}: found numbers beyond 65504, where float16 ends")
    return rounded


def read_tensors(file: Path, sha256: str) -> dict[str, Tensor]:
    """Map a safetensors file into memory, if it is whole and the recorded one."""
    format.read_shapes(file)  # before a file that claims to be huge is hashed
    format.check_sha256(file, sha256)
    return load_file(file)


@torch.random.fork_rng(devices=[])  # a load draws nothing from the global generator
def build(
    config: Mapping[str, Any],
    classes: int,
    state: Mapping[str, Tensor],
    weights: Path,
    kwargs: Mapping[str, Any],
) -> nn.Module:
    """Return the architecture with a file's tensors, those of its classifier only if it has `classes`."""
    try:
        model = _assign(config, classes, state)
        if not kwargs:
            return model
    except RuntimeError:  # of the strict load
        if config["zoo"]["recipe_sha256"]:  # ours, which are whole
            raise
        # A file of an older timm, which timm adapts. With another number of classes timm leaves out silently
        # what does not fit; with the file's own it raises.
        _create(config, config["num_classes"], kwargs, weights)
    return _create(config, classes, kwargs, weights)  # arguments may change the tensors: timm adapts them


def _assign(config: Mapping[str, Any], classes: int, state: Mapping[str, Tensor]) -> nn.Module:
    """Build the model without storage, and make the file's tensors its parameters.

    timm spends most of a load initialising weights that it overwrites then; the result is the same.
    """
    ends = config["pretrained_cfg"]["classifier"] or []
    layers = {*()} if classes else {ends} if isinstance(ends, str) else {*ends}
    found = {name: each for name, each in state.items() if name.rpartition(".")[0] not in layers}
    found = {name: each.float() if each.is_floating_point() else each for name, each in found.items()}
    with suppress(ZooError), torch.device("meta"), backbones.SkipInit():
        model = _create(config, classes, {})
        model.load_state_dict(found, assign=True)
        if not any(buffer.is_meta for buffer in model.buffers()):
            return model
    # buffers that are in no file need values, and so do some architectures of older timm as they are built
    model = _create(config, classes, {})
    model.load_state_dict(found, assign=True)
    return model


def _create(
    config: Mapping[str, Any], num_classes: int, kwargs: Mapping[str, Any], weights: Path | None = None
) -> nn.Module:
    backbones.check_arguments(config["model_args"])
    arguments, cfg = {**config["model_args"], **kwargs}, dict(config["pretrained_cfg"])
    cfg |= {key: config[key] for key in ("num_classes", "label_names") if key in config}
    if weights is not None:
        # by file: `local-dir:` of timm below 1.0.29 fails beside a second safetensors file
        arguments["pretrained"], cfg["file"] = True, str(weights)
    return backbones.create(config["architecture"], num_classes=num_classes, pretrained_cfg=cfg, **arguments)


def read_centers(folder: Path, config: Mapping[str, Any]) -> Centers | None:
    """Return the learned class centers of the release in `folder`, or None when its objective has none.

    Of a plain timm model they are its linear classifier. A `ReleaseError` says that the file is missing,
    damaged, not the recorded one, or does not fit the classes.
    """
    zoo = config["zoo"]
    if not zoo["has_centers"]:
        return None
    names = tuple(config.get("label_names") or zoo.get("class_names") or ())
    if zoo["recipe_sha256"] is None:
        tensors = read_tensors(folder / format.WEIGHTS, zoo["weights_sha256"])
        layer = config["pretrained_cfg"]["classifier"]
        weight = tensors[f"{layer}.weight"].float().clone()
        bias = tensors.get(f"{layer}.bias", torch.zeros(len(names))).float().clone()
        return Centers(weight, bias, torch.full((len(names),), -1), class_names=names)
    tensors = read_tensors(folder / format.CENTERS, zoo["centers_sha256"])
    found = {name: [*each.shape] for name, each in tensors.items()}
    expected = {
        "weight": [len(names), zoo["feature_dim"]],
        "bias": [len(names)],
        "class_counts": [len(names)],
    }
    if "prototypes" in found:  # as wide as the projection, which is recorded nowhere
        expected["prototypes"] = [len(names), *found["prototypes"][1:]]
    if found != expected:
        raise ReleaseError(f"{folder / format.CENTERS}: found {found}, expected {expected}")
    floats = {name: each.float() if each.dtype == torch.float16 else each for name, each in tensors.items()}
    return Centers(**floats, class_names=names)


def write_images(lists: Mapping[str, ImageList], file: Path) -> None:
    """Write which images a release was trained and measured on: the content ids `[N]` of each split.

    The lists' hashes are in the header's metadata, under one key, as safetensors writes several in any order.
    """
    hashes = json.dumps({split: lists[split].sha256 for split in sorted(lists)})
    ids = {split: torch.tensor(each.ids) for split, each in lists.items()}
    file.write_bytes(save(ids, {"sha256": hashes}))


def read_images(folder: Path, config: Mapping[str, Any]) -> dict[str, ImageList]:
    """Return the lists by split, if a release has any; a `ReleaseError` refuses those that are not its."""
    file, about = folder / format.IMAGES, config["zoo"].get("dataset", {})
    if (sha256 := config["zoo"].get("images_sha256")) is None:
        return {}
    ids = read_tensors(file, sha256)
    try:
        with safe_open(file, framework="numpy") as stream:
            hashes = json.loads(stream.metadata()["sha256"])
        lists = {split: ImageList(each.numpy(), str(hashes[split])) for split, each in ids.items()}
        found = (len(ids["train"]), lists["train"].sha256)
    except (LookupError, TypeError, ValueError) as error:
        raise ReleaseError(f"{file}: its metadata lack the hashes of the lists: {error!r}") from None
    expected = (about.get("num_images") or found[0], about.get("sha256") or found[1])
    if found != expected or any(each.dtype != torch.int64 for each in ids.values()):
        raise ReleaseError(f"{file}: found training images {found}, expected {expected}, int64")
    return lists
