"""The tensors of a release: written as other files are, read once their header and hash have been checked."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from zoo.errors import ReleaseError
from zoo.files import is_file
from zoo.modules.centers import Centers
from zoo.release import format
from zoo.release.verified import check_sha256

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class TensorInfo(NamedTuple):
    """What a file's header says about one tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


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
        OSError, SafetensorError: when it cannot be written.
    """
    file.touch()
    mode = file.stat().st_mode
    save_file(dict(tensors), file, metadata=dict(metadata))
    file.chmod(stat.S_IMODE(mode))


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors that a safetensors file declares, by name; their bytes are not read.

    Raises:
        ReleaseError: when the file is missing, is a pickle or anything else, is cut off, or declares
            tensors that its size does not hold.
    """
    if not is_file(file):
        raise ReleaseError(f"{file.parent}: {file.name} is missing")
    try:
        with file.open("rb") as stream:
            kind = format.disguise(stream.read(format.DISGUISE_BYTES))
        if kind:
            raise ReleaseError(f"{file}: {kind}")
        with safe_open(file, "pt") as tensors:  # what `load_file` reads with; it checks sizes and offsets
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {
                name: TensorInfo(_DTYPES[found.get_dtype()], tuple(found.get_shape()))
                for name, found in slices.items()
            }
    except KeyError as error:
        raise ReleaseError(f"{file}: found the type {error}, expected one of {', '.join(_DTYPES)}") from None
    except (OSError, SafetensorError) as error:
        raise ReleaseError(f"{file}: damaged, cut off or no safetensors file: {error}") from None


def mismatch(expected: Mapping[str, Tensor], found: Mapping[str, TensorInfo]) -> str:
    """Say how a file's tensors differ from those that a model needs; '' when they do not.

    A floating-point tensor may be stored in another precision than the model's.
    """
    shapes, dtypes = [], []
    for name in (name for name in expected if name in found):
        (dtype, shape), tensor = found[name], expected[name]
        if shape != tensor.shape:
            shapes.append(f"{name} is {list(shape)} instead of {list(tensor.shape)}")
        if dtype != tensor.dtype and not (dtype.is_floating_point and tensor.is_floating_point()):
            dtypes.append(f"{name} is {str(dtype)[6:]} instead of {str(tensor.dtype)[6:]}")
    problems = {
        "missing": [name for name in expected if name not in found],
        "unexpected": [name for name in found if name not in expected],
        "other shape": shapes,
        "other type": dtypes,
    }
    return "; ".join(f"{kind}: {_some(names)}" for kind, names in problems.items() if names)


def _some(names: list[str], limit: int = 5) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(name[:200] for name in names[:limit]) + rest


def read_tensors(file: Path, sha256: str) -> dict[str, Tensor]:
    """Map a safetensors file into memory, on the CPU.

    Args:
        file: the file. Whether its tensors are the wanted ones is for `read_header` to say, before.
        sha256: the recorded hash.

    Raises:
        ReleaseError: when it is missing, damaged, or not the recorded one.
    """
    check_sha256(file, sha256)
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
    found = read_header(file)
    classes = len(config.get("label_names") or zoo["class_names"])
    expected = {
        "weight": torch.empty(classes, zoo["feature_dim"], device="meta"),
        "bias": torch.empty(classes, device="meta"),
        "class_counts": torch.empty(classes, dtype=torch.int64, device="meta"),
    }
    if "prototypes" in found:  # as wide as the objective's projection, which is recorded nowhere else
        width = min(found["prototypes"].shape[-1:] or (0,), (1 << 20,))
        expected["prototypes"] = torch.empty(classes, *width, device="meta")
    if problem := mismatch(expected, found):
        raise ReleaseError(f"{file}: does not fit {classes} classes: {problem}")


def read_centers(folder: Path, config: Mapping[str, Any]) -> Centers | None:
    """Return the learned class centers of the release in `folder`, or None when its objective has none.

    Of a plain timm model they are its linear classifier; how many images each class had is not known.

    Raises:
        ReleaseError: as `check_centers`, and when the file is not the recorded one.
    """
    zoo = config["zoo"]
    if not zoo["has_centers"]:
        return None
    names = config.get("label_names") or zoo["class_names"]
    if zoo["recipe_sha256"] is None:
        tensors = read_tensors(folder / format.WEIGHTS, zoo["weights_sha256"])
        place, classes = config["pretrained_cfg"]["classifier"], len(names)
        bias = tensors.get(f"{place}.bias", torch.zeros(classes))
        unknown = torch.full((classes,), -1, dtype=torch.int64)
        weight = tensors[f"{place}.weight"]
        return Centers(weight.float().clone(), bias.float().clone(), unknown, class_names=names)
    check_centers(folder, config)
    tensors = read_tensors(folder / format.CENTERS, zoo["centers_sha256"])
    tensors = {
        name: tensor.float() if tensor.dtype == torch.float16 else tensor for name, tensor in tensors.items()
    }
    weight, bias, counts = (tensors[name] for name in ("weight", "bias", "class_counts"))
    return Centers(weight, bias, counts, tensors.get("prototypes"), class_names=names)
