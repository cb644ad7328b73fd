"""The tensors of a release: weights, class centers, lists of images."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from zoo.errors import ReleaseError, few
from zoo.files import is_file
from zoo.images import ImageList
from zoo.modules.centers import Centers
from zoo.release import format

_FLOATS = {"F64", "F32", "F16", "BF16"}


class TensorInfo(NamedTuple):
    """A tensor in a file's header: safetensors' name of its type, e.g. "F32", and its shape."""

    dtype: str
    shape: tuple[int, ...]


def to_half(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with their floating-point numbers in float16, others as they are.

    A `ReleaseError` names a tensor with a finite number beyond float16's range.
    """
    halves = {name: each.half() if each.is_floating_point() else each for name, each in tensors.items()}
    for name, tensor in tensors.items():
        if halves[name].isinf().any() and not tensor.isinf().any():
            found = f"found {float(tensor.abs().max()):.4g}, but float16 ends at 65504"
            raise ReleaseError(f"{name}: {found}; training.release_dtype=float32 keeps it")
    return halves


def round_to_half(encoder: nn.Module) -> None:
    """Round the encoder's tensors in place to numbers that float16 holds, see `to_half`."""
    encoder.load_state_dict(to_half(encoder.state_dict()))


def round_centers_to_half(centers: Centers) -> Centers:
    """Return the centers in numbers that float16 holds, see `to_half`, in the precision that they have."""
    learned = {name: value for name, value in centers._asdict().items() if value is not None}
    return centers._replace(**{name: half.to(learned[name]) for name, half in to_half(learned).items()})


def write_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str]) -> None:
    """Write contiguous CPU tensors, no two of the same memory, as a safetensors file.

    safetensors 0.8 makes its files with mode 600; they get that of any other new file.
    """
    file.touch()
    mode = file.stat().st_mode
    save_file(dict(tensors), file, metadata=dict(metadata))
    file.chmod(stat.S_IMODE(mode))


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors that a safetensors file declares, by name; their bytes are not read.

    A `ReleaseError` says that it is missing, something else, or too short for what it declares.
    """
    if not is_file(file):
        raise ReleaseError(f"{file.parent}: {file.name} is missing")
    start = b""  # of Git LFS's pointers and of pickles it says what they are
    try:
        with file.open("rb") as stream:
            start = stream.read(40)
        with safe_open(file, "pt") as tensors:  # what `load_file` reads with; it checks sizes and offsets
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: TensorInfo(each.get_dtype(), (*each.get_shape(),)) for name, each in slices.items()}
    except (OSError, SafetensorError) as error:
        raise ReleaseError(f"{file}: found {start!r}, expected a whole safetensors file: {error}") from None


def mismatch(expected: Mapping[str, Tensor], found: Mapping[str, TensorInfo]) -> str:
    """Return in words how a file's tensors differ from those that a model needs; '' when they do not.

    A floating-point tensor may be stored in another precision than the model's.
    """
    wrong = [
        f"{name} is {info.dtype} {list(info.shape)} instead of {tensor.dtype} {list(tensor.shape)}"
        for name, tensor in expected.items()
        if (info := found.get(name))
        if info.shape != tensor.shape or (info.dtype in _FLOATS) != tensor.is_floating_point()
    ]
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    problems = {"missing": missing, "unexpected": unexpected, "other shape or type": wrong}
    return "; ".join(f"{kind}: {few(names)}" for kind, names in problems.items() if names)[:2000]


def read_tensors(file: Path, sha256: str) -> dict[str, Tensor]:
    """Map a safetensors file, whose header was read before, into memory, if it is the recorded one."""
    format.check_sha256(file, sha256)
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ReleaseError(f"{file}: damaged or no safetensors file: {error}") from None


def read_centers(folder: Path, config: Mapping[str, Any]) -> Centers | None:
    """Return the learned class centers of the release in `folder`, or None when its objective has none.

    Of a plain timm model they are its linear classifier; how many images each class had is not known. A
    `ReleaseError` says that the file is missing, damaged, not the recorded one, or does not fit the classes.
    """
    zoo = config["zoo"]
    if not zoo["has_centers"]:
        return None
    names = config.get("label_names") or zoo.get("class_names") or ()
    if zoo["recipe_sha256"] is None:
        tensors = read_tensors(folder / format.WEIGHTS, zoo["weights_sha256"])
        layer = config["pretrained_cfg"]["classifier"]
        weight = tensors[f"{layer}.weight"].float().clone()
        bias = tensors.get(f"{layer}.bias", torch.zeros(len(names))).float().clone()
        return Centers(weight, bias, torch.full((len(names),), -1), class_names=names)
    file = folder / format.CENTERS
    header = read_header(file)
    shapes = {"weight": (len(names), zoo["feature_dim"]), "bias": (len(names),)}
    if "prototypes" in header:  # as wide as the projection, which is recorded nowhere
        shapes["prototypes"] = (len(names), *header["prototypes"].shape[1:])
    with torch.device("meta"):
        expected = {name: torch.empty(shape) for name, shape in shapes.items()}
        expected["class_counts"] = torch.empty(len(names), dtype=torch.int64)
    if problem := mismatch(expected, header):
        raise ReleaseError(f"{file}: does not fit {len(names)} classes: {problem}")
    tensors = read_tensors(file, zoo["centers_sha256"])
    floats = {name: each.float() if each.dtype == torch.float16 else each for name, each in tensors.items()}
    return Centers(**floats, class_names=names)


def write_images(lists: Mapping[str, ImageList], file: Path) -> None:
    """Write which images a release was trained and measured on, whatever copy is at hand.

    For each split that is listed its content ids `[N]`, int64 (`ImageList`); their hashes are in the header's
    metadata, under one key, as safetensors writes several in any order: `{"sha256": '{"test": "...", ...}'}`.
    """
    hashes = json.dumps({split: lists[split].sha256 for split in sorted(lists)})
    write_tensors({split: torch.tensor(each.ids) for split, each in lists.items()}, file, {"sha256": hashes})


def read_images(folder: Path, config: Mapping[str, Any]) -> dict[str, ImageList]:
    """Return the lists of the release in `folder` by split; none where it has no such file.

    A `ReleaseError` says that the file is missing, damaged, not the recorded one, or of other images.
    """
    file, sha256 = folder / format.IMAGES, config["zoo"].get("images_sha256")
    if sha256 is None:
        return {}
    header = read_header(file)
    if "train" not in header or any(each.dtype != "I64" or len(each.shape) != 1 for each in header.values()):
        raise ReleaseError(f"{file}: found {header}, expected train, and test, each int64 [N]")
    ids = read_tensors(file, sha256)
    try:
        with safe_open(file, framework="numpy") as stream:
            hashes = json.loads((stream.metadata() or {})["sha256"])
            lists = {split: ImageList(ids[split].numpy(), str(hashes[split])) for split in ids}
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise ReleaseError(f"{file}: its metadata lack the hashes of the lists: {error!r}") from None
    found, count = lists["train"].sha256, len(ids["train"])
    recorded, expected = (config["zoo"]["dataset"].get(key) for key in ("sha256", "num_images"))
    if recorded not in (None, found) or expected not in (None, count):
        raise ReleaseError(
            f"{file}: lists {count} training images with sha256 {found:.80}, the release was trained on "
            f"{expected} with {recorded}"
        )
    return lists
