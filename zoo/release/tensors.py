"""The parts of a release that need torch: RGB conversion, weights and their model, centers, image lists."""

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

    ids: NDArray[np.int64]  # [N], see `zoo.data.dataset.content_ids`
    sha256: str  # of the listed copy's names and labels, see `ImageDataset.describe`


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB exactly as timm does, by `image.convert("RGB")`; the EXIF orientation is NOT applied.

    Raises a ValueError for grey values other than integers from 0 to 255, which `convert` would clip.
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
    """Convert a user's image by `to_rgb`; raise a `DataError` if it is no PIL image or not convertible."""
    if not isinstance(image, Image.Image):
        raise DataError(f"image: found a {type(image).__name__}, expected a PIL image: Image.open(FILE)")
    try:
        return to_rgb(image)
    except ValueError as error:
        raise DataError(f"image: {error}") from None


def round_to_half(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """Round tensors to float16 values without changing their dtype; None entries are dropped.

    Raises a `ReleaseError` that names a tensor with values beyond float16's range.
    """
    given = {name: each for name, each in tensors.items() if each is not None}
    rounded = {k: v.half().to(v) if v.is_floating_point() else v for k, v in given.items()}
    if beyond := [name for name, each in rounded.items() if each.isinf().any()]:
        raise ReleaseError(f"{beyond[0]}: found numbers beyond 65504, where float16 ends")
    return rounded


def read_tensors(file: Path, sha256: str) -> dict[str, Tensor]:
    """Memory-map a safetensors file after checking that it is complete and matches the recorded hash."""
    format.read_shapes(file)  # before hashing, as the file may claim to be huge
    format.check_sha256(file, sha256)
    return load_file(file)


def build(
    config: Mapping[str, Any],
    classes: int,
    state: Mapping[str, Tensor],
    weights: Path,
    kwargs: Mapping[str, Any],
) -> nn.Module:
    """Build the model with a file's tensors, those of its classifier only if `classes` is not 0."""
    try:
        model = _assign(config, classes, state)
        if not kwargs:
            return model
    except RuntimeError:  # from the strict load
        if config["zoo"]["recipe_sha256"]:  # ours, which are complete
            raise
        # A file of an older timm, which timm adapts. With a different number of classes timm silently skips
        # what does not fit; with the file's own number it raises.
        _create(config, config["num_classes"], kwargs, weights)
    return _create(config, classes, kwargs, weights)  # arguments may change the tensors: timm adapts them


def _assign(config: Mapping[str, Any], classes: int, state: Mapping[str, Tensor]) -> nn.Module:
    """Build the model on the meta device, and assign the file's tensors to it.

    timm spends most of a load initialising weights that are then overwritten; the result is the same.
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
    # buffers missing from the file need values, and so do some architectures of older timm when built
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
    arch, draws = config["architecture"], torch.get_default_device().type != "meta"
    with torch.random.fork_rng(devices=[], enabled=draws):  # only if needed: threads share the generator
        return backbones.create(arch, num_classes=num_classes, pretrained_cfg=cfg, **arguments)


def read_centers(folder: Path, config: Mapping[str, Any]) -> Centers | None:
    """Return the learned class centers of the release in `folder`, or None when its objective has none.

    For a plain timm model they are its linear classifier. Raises a `ReleaseError` if the file is missing,
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
    count = len(names)
    expected = {"weight": [count, zoo["feature_dim"]], "bias": [count], "class_counts": [count]}
    if "prototypes" in found:  # as wide as the projection, whose width is not recorded
        expected["prototypes"] = [count, *found["prototypes"][1:]]
    if found != expected:
        raise ReleaseError(f"{folder / format.CENTERS}: found {found}, expected {expected}")
    floats = {name: each.float() if each.dtype == torch.float16 else each for name, each in tensors.items()}
    return Centers(**floats, class_names=names)


def write_images(lists: Mapping[str, ImageList], file: Path) -> None:
    """Write the content ids `[N]` of each split's images, on which a release was trained or evaluated.

    The lists' hashes are in the header's metadata, under one key: safetensors writes several in any order.
    """
    hashes = json.dumps({split: lists[split].sha256 for split in sorted(lists)})
    ids = {split: torch.tensor(each.ids) for split, each in lists.items()}
    file.write_bytes(save(ids, {"sha256": hashes}))


def read_images(folder: Path, config: Mapping[str, Any]) -> dict[str, ImageList]:
    """Return a release's image lists by split, {} without any; raise a `ReleaseError` for a mismatch."""
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
