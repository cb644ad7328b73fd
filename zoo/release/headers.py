"""The header of a safetensors file, read and checked before any tensor is.

Format: https://huggingface.co/docs/safetensors/index#format. 8 bytes little-endian length, that many bytes of
JSON `{name: {dtype, shape, data_offsets}}`, then the tensors without gaps. safetensors itself holds a file to
that; before it may, the file must be one that is soon read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zoo.errors import ReleaseError
from zoo.release.format import DISGUISE_BYTES, disguise

MAX_HEADER_BYTES = 8 << 20  # names and shapes of the largest models take a tenth of this

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
    """What a header says about one tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors that `file` declares, by name; their bytes are not read.

    Raises:
        ReleaseError: when the file is missing, is a pickle or anything else, is cut off, or declares
            tensors that its size does not hold.
    """
    try:
        _check_start(file)
        with safe_open(file, "pt") as stream:  # what `load_file` reads with
            names = stream.keys()
            return {name: _info(name, stream.get_slice(name), file) for name in names}
    except FileNotFoundError:
        raise ReleaseError(f"{file.parent}: {file.name} is missing") from None
    except OSError as error:
        raise ReleaseError(f"{file}: cannot be read: {error}") from None
    except SafetensorError as error:
        raise ReleaseError(f"{file}: damaged, cut off or no safetensors file: {error}") from None


def _check_start(file: Path) -> None:
    """Refuse what would never end, what is something else, and a header that takes long to read."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise ReleaseError(f"{file}: found no regular file, expected safetensors")
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(DISGUISE_BYTES)
    if kind := disguise(start):
        raise ReleaseError(f"{file}: {kind}")
    length = int.from_bytes(start[:8], "little")
    if len(start) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise ReleaseError(
            f"{file}: damaged, cut off or no safetensors file: {size:,} bytes with a header of {length:,}"
        )


def _info(name: str, found: Any, file: Path) -> TensorInfo:
    dtype = _DTYPES.get(found.get_dtype())
    if dtype is None:
        raise ReleaseError(
            f'{file}: {name[:200]} is "{found.get_dtype()}", expected one of {", ".join(_DTYPES)}'
        )
    return TensorInfo(dtype, tuple(found.get_shape()))


def mismatch(expected: Mapping[str, Tensor], found: Mapping[str, TensorInfo]) -> str:
    """Say how a file's tensors differ from those that a model needs; '' when they do not.

    A floating-point tensor may be stored in another precision than the model's.
    """
    shapes = [
        f"{key} is {list(found[key].shape)} instead of {list(tensor.shape)}"
        for key, tensor in expected.items()
        if key in found and found[key].shape != tensor.shape
    ]
    dtypes = [
        f"{key} is {_name(found[key].dtype)} instead of {_name(tensor.dtype)}"
        for key, tensor in expected.items()
        if key in found
        and found[key].dtype != tensor.dtype
        and not (found[key].dtype.is_floating_point and tensor.dtype.is_floating_point)
    ]
    problems = {
        "missing": [key for key in expected if key not in found],
        "unexpected": [key for key in found if key not in expected],
        "other shape": shapes,
        "other type": dtypes,
    }
    return "; ".join(f"{kind}: {_some(keys)}" for kind, keys in problems.items() if keys)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _some(names: list[str], limit: int = 5) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(name[:200] for name in names[:limit]) + rest
