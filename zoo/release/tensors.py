"""The tensors of a release: written as other files are, read once header and hash have been checked."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from zoo.errors import ReleaseError
from zoo.modules.centers import Centers
from zoo.release import configs, format, headers, verified

_LARGEST_PROJECTION = 1 << 20


def to_half(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with their floating-point numbers in float16, others as they are.

    Raises:
        ReleaseError: naming the tensor with a finite number beyond float16's range.
    """
    halves = {
        name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }
    for name, half in halves.items():
        if half.isinf().any() and not tensors[name].isinf().any():
            raise ReleaseError(
                f"{name}: found {float(tensors[name].abs().max()):.4g}, but float16 ends at "
                f"{torch.finfo(torch.float16).max:.0f}; training.release_dtype=float32 keeps it"
            )
    return halves


def round_to_half(encoder: nn.Module) -> None:
    """Round the encoder's tensors to numbers that float16 holds; they stay in the precision that they have.

    Raises:
        ReleaseError: as `to_half`.
    """
    state = encoder.state_dict()
    for name, half in to_half(state).items():
        state[name].copy_(half)


def round_centers_to_half(centers: Centers) -> Centers:
    """Return the centers in numbers that float16 holds, in the precision that they have.

    Raises:
        ReleaseError: as `to_half`.
    """
    learned = {name: value for name, value in centers._asdict().items() if value is not None}
    return centers._replace(**{name: half.to(learned[name]) for name, half in to_half(learned).items()})


def write_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file that whoever may read other new files may read.

    safetensors 0.8 leaves its file to the owner alone (mode 600), whatever the umask says; on a machine that
    people share nobody else could then load the release.

    Args:
        tensors: contiguous, on the CPU, no two of the same memory.
        file: the file.
        metadata: of its header.

    Raises:
        OSError: when it cannot be written.
        SafetensorError: likewise.
    """
    file.touch()
    mode = file.stat().st_mode
    save_file(dict(tensors), file, metadata=dict(metadata))
    file.chmod(stat.S_IMODE(mode))


def read_tensors(file: Path, sha256: str) -> dict[str, Tensor]:
    """Map a safetensors file into memory, on the CPU.

    Args:
        file: the file. Whether its tensors are the wanted ones is for `headers.read_header` to say, before.
        sha256: the recorded hash.

    Raises:
        ReleaseError: when it is missing, damaged, or not the recorded one.
    """
    verified.check_sha256(file, sha256)
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ReleaseError(f"{file}: damaged or no safetensors file: {error}") from None


def check_centers(folder: Path, config: Mapping[str, Any]) -> None:
    """Compare the header of the centers' file with the classes and features of `config`; no tensor is read.

    Raises:
        ReleaseError: when the file is missing, damaged, or has other tensors or shapes.
    """
    zoo, file = config["zoo"], folder / format.CENTERS
    found = headers.read_header(file)
    classes = len(config.get("label_names") or zoo["class_names"])
    expected = {
        "weight": torch.empty(classes, zoo["feature_dim"], device="meta"),
        "bias": torch.empty(classes, device="meta"),
        "class_counts": torch.empty(classes, dtype=torch.int64, device="meta"),
    }
    if "prototypes" in found:
        # Of the objective's projection, which no other record has. A file may declare any for no elements.
        dim = [min(size, _LARGEST_PROJECTION) for size in found["prototypes"].shape[-1:]]
        expected["prototypes"] = torch.empty(classes, *dim, device="meta")
    if problem := headers.mismatch(expected, found):
        raise ReleaseError(f"{file}: does not fit {classes} classes: {problem}")


def read_centers(folder: Path, config: Mapping[str, Any]) -> Centers | None:
    """Return the learned class centers of the release in `folder`, or None when its objective has none.

    Raises:
        ReleaseError: as `check_centers`, and when the file is not the recorded one.
    """
    zoo = config["zoo"]
    if not zoo["has_centers"]:
        return None
    if configs.is_plain(config):
        return _classifier_as_centers(folder, config)
    check_centers(folder, config)
    tensors = read_tensors(folder / format.CENTERS, zoo["centers_sha256"])
    tensors = {
        name: tensor.float() if tensor.dtype == torch.float16 else tensor for name, tensor in tensors.items()
    }
    return Centers(
        tensors["weight"],
        tensors["bias"],
        tensors["class_counts"],
        tensors.get("prototypes"),
        class_names=config.get("label_names") or zoo["class_names"],
    )


def _classifier_as_centers(folder: Path, config: Mapping[str, Any]) -> Centers:
    """Return the linear classifier of a plain timm model; how many images each class had is not known."""
    tensors = read_tensors(folder / format.WEIGHTS, config["zoo"]["weights_sha256"])
    place, classes = config["pretrained_cfg"]["classifier"], config["num_classes"]
    weight = tensors[f"{place}.weight"].float()
    bias = tensors.get(f"{place}.bias")
    return Centers(
        weight.clone(),
        torch.zeros(classes) if bias is None else bias.float().clone(),
        torch.full((classes,), -1, dtype=torch.int64),
        class_names=config["label_names"],
    )
