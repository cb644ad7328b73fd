"""From a checkpoint file to its tensors, without running anything that the file brings.

`torch.load(weights_only=True)` reads pickles with an interpreter of its own that knows tensors, plain values
and a list of harmless classes. Files of torch >= 1.6 are mapped: what is not used, such as optimizer states,
is never read. Older ones (MoCo v1's and v2's own) can only be read as a whole.
"""

from __future__ import annotations

import mmap
import os
import re
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from zoo.errors import ReleaseError, first_line
from zoo.files import is_dir, is_file
from zoo.release.convert.listing import shown, summary
from zoo.release.format import DISGUISE_BYTES, PICKLES, disguise, lfs_pointer
from zoo.torch_files import check_archive, refuse_bytearrays

_LONGEST_HEADER = 100_000_000  # of safetensors, which takes no longer one
_MOST_KEYS = 20_000  # the largest encoders have a few thousand
_LAST_EPOCH = 1 << 31
_WEIGHTS = ("state_dict", "model")  # entries that hold the trained model
_MOMENTUM_WEIGHTS = "model_ema"  # PyContrast and FT: the momentum encoder is an entry of its own
_EXPECTED = "expected a file that torch.save or safetensors wrote"
_DAMAGED = "damaged, or no checkpoint: it begins as a {}, and does not go on as torch.save writes one"
_FRAME = "Unsupported operand 149"  # what protocol 4 begins with; no older one has it
# What pickle.dump begins with for a dict, a list or an object, by protocol. Pickles of torch.save begin with
# its mark, a number: 8A 0A and ten bytes.
_DUMPED = re.compile(
    rb"\x80[\4\5]\x95(?!.{8}\x8a\n)|(?:\x80[\2\3])?(?:[}\]]q\0|\([dl]p0\n|c[\w.]{1,99}\n\w{1,99}\n)",
    re.DOTALL,
)
_TRAINING_STATE = {
    "amp": "state of mixed precision",
    "args": "settings of the training",
    "callbacks": "state of Lightning's callbacks",
    "contrast": "queue or memory bank",
    "criterion": "state of the loss",
    "hyper_parameters": "settings of the training",
    "loops": "state of Lightning's loops",
    "lr_scheduler": "state of the schedule",
    "lr_schedulers": "state of the schedule",
    "opt": "settings of the training",
    "optimizer": "state of the optimizer",
    "optimizer_states": "state of the optimizer",
    "scaler": "state of mixed precision",
    "scheduler": "state of the schedule",
}


class _Inert:
    """Takes the place of classes that authors save beside the weights, and forgets what it is given.

    `torch.load` looks names up in a table (`safe_globals`). These names lead here: neither the class that the
    file names nor its module is imported or called, so it does not matter what the file passes to it. What
    comes out is an object without content, and such objects are only ever left out.
    """

    def __new__(cls, *_: object, **__: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


_HARMLESS: list[Any] = [
    (_Inert, name)
    for name in (
        "argparse.Namespace",  # SupContrast, MAE: the command line's settings
        "pathlib.PosixPath",  # Lightning's callbacks
        "pathlib.WindowsPath",
        "numpy.core.multiarray.scalar",  # accuracies as NumPy numbers; the path is numpy._core from 2.0 on
        "numpy._core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
        "numpy.ndarray",
        "numpy.dtype",
    )
]


class Checkpoint(NamedTuple):
    """What a file holds.

    Attributes:
        tensors: of the model, by key; `module.` of DistributedDataParallel and `_orig_mod.` of torch.compile
            are removed, entries that are no part of the model's `state_dict` keep their name as a prefix.
        entries: what else the file holds and is left out: name -> what it is.
        epoch: as the file says, or None.
        arch: the architecture that the file names, or None; MoCo's and PaCo's do, in their own words.
    """

    tensors: dict[str, Tensor]
    entries: dict[str, str]
    epoch: int | None
    arch: str | None


def read_checkpoint(file: Path) -> Checkpoint:
    """Read a checkpoint (.pth, .pth.tar, .ckpt, .pt, .bin) or a .safetensors file.

    Raises:
        ReleaseError: when the file is missing, damaged, holds no weights, or cannot be read without running
            code; then the message names the class that it asks for.
    """
    if not is_file(file):
        raise ReleaseError(f"{file}: {_absent(file)}")
    try:
        content = _safetensors(file) if _is_safetensors(file) else _load(file)
    except OSError as error:
        raise ReleaseError(f"{file}: {_unreadable(error)}") from None
    if not isinstance(content, Mapping):
        raise ReleaseError(f"{file}: found a {type(content).__name__}, expected a dict of tensors")
    try:
        tensors, entries = _split(content, file)
    except RecursionError:
        raise ReleaseError(f"{file}: its dicts are nested too deeply for a checkpoint") from None
    if not tensors:
        found = summary(content) or "nothing"
        raise ReleaseError(f"{file}: holds no weights: found {found}, expected {' or '.join(_WEIGHTS)}")
    arch: Any = content.get("arch")
    arch = arch if type(arch) is str else None
    epoch: Any = content.get("epoch")
    if type(epoch) is not int or not 0 <= epoch < _LAST_EPOCH:
        return Checkpoint(tensors, entries, None, arch)
    return Checkpoint(tensors, {name: what for name, what in entries.items() if name != "epoch"}, epoch, arch)


def _absent(file: Path) -> str:
    """Say what is in the place of a file."""
    if is_dir(file):
        return f"found a folder, {_EXPECTED}"
    return "no regular file" if os.path.lexists(file) else "no such file"


def _is_safetensors(file: Path) -> bool:
    """By content: 8 bytes of length and a JSON object. A copy in a cache may have any name."""
    with file.open("rb") as stream:
        start = stream.read(DISGUISE_BYTES)
    if pointer := lfs_pointer(start):
        raise ReleaseError(f"{file}: {pointer}")
    named = file.suffix.lower() == ".safetensors"
    if named and disguise(start):  # torch.load goes by the suffix
        raise ReleaseError(f"{file}: a pickle under the name of another format; rename it to {file.stem}.pth")
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= _LONGEST_HEADER


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ReleaseError(f"{file}: damaged safetensors: {error}") from None


def _load(file: Path) -> Any:
    mapped = zipfile.is_zipfile(file)
    try:
        if mapped:
            check_archive(file)
        else:
            _check_plain(file)
        with torch.serialization.safe_globals(_HARMLESS):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except ReleaseError:
        raise
    except Exception as error:  # a damaged or hostile pickle can make its interpreter raise anything
        raise ReleaseError(f"{file}: {_reason(error, 'zip archive' if mapped else 'pickle')}") from None


def _check_plain(file: Path) -> None:
    """Files of torch before 1.6 are pickles and tensors one after the other, or tar archives before 0.2."""
    if tarfile.is_tarfile(file):
        raise ReleaseError(
            f"{file}: a tar archive of torch before 0.2, which cannot be read without running code; write it "
            "again with torch.save where it can be loaded and is trusted"
        )
    if not file.stat().st_size:
        raise ReleaseError(f"{file}: found an empty file, {_EXPECTED}")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:2] == b"PK":  # and zipfile found no list of its entries at the end
            raise ReleaseError(f"{file}: {_DAMAGED.format('zip archive')}")
        dumped = _DUMPED.match(data) is not None
        if not (dumped or data[:2].startswith(PICKLES)):  # torch's reader would tell what an odd byte does
            raise ReleaseError(
                f"{file}: no checkpoint: its first bytes are of no zip archive, pickle or safetensors; "
                f"{_EXPECTED}"
            )
        refuse_bytearrays(data, file)
        if dumped:
            raise ReleaseError(
                f"{file}: a pickle of pickle.dump, which is no checkpoint; {_EXPECTED}. If you trust the "
                "file, load it as its authors do and write the dict of its tensors with torch.save"
            )


def _reason(error: Exception, kind: str) -> str:
    text = str(error)
    asked = re.search(r"GLOBAL (\S+) ?(?:was not|whose)", text)
    if asked:
        return (
            f'reading it would run code: it asks for "{shown(asked[1])}", and only tensors and plain values '
            "are read. If you trust the file, save its tensors alone where its code is installed: torch.save("
            '{"state_dict": torch.load(FILE, weights_only=False)["state_dict"]}, NEW_FILE)'
        )
    if "Weights only load failed" in text:
        lines = [line.strip() for line in text.splitlines()]
        detail = next((line for line in lines if line.startswith(("Can only", "Trying"))), "")
        if detail:
            return f"cannot be read without running code: {shown(detail)}"
        if _FRAME in lines:
            return (
                "a pickle of protocol 4 or 5, expected 2, which torch.save writes by default. If you trust "
                "the file, write it again: torch.save(torch.load(FILE, weights_only=False), NEW_FILE)"
            )
    elif isinstance(error, OSError | MemoryError):  # of the machine, and not of what the file holds
        return _unreadable(error)
    # what else torch says is of its reader's inside, and another text for every byte
    return _DAMAGED.format(kind)


def _unreadable(error: Exception) -> str:
    return f"cannot be read: {shown(first_line(error))}"


def _split(content: Mapping[Any, Any], file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tell the model's tensors from what else lies beside them."""
    tensors: dict[str, Tensor] = {}
    entries: dict[str, str] = {}
    bare = all(isinstance(value, Tensor) for value in content.values())
    for name, value in content.items():
        if bare:
            _add(tensors, "", {name: value}, file)
        elif name in _WEIGHTS and isinstance(value, Mapping):
            _add(tensors, "", value, file)
        elif name == _MOMENTUM_WEIGHTS and isinstance(value, Mapping):
            _add(tensors, f"{name}.", value, file)
        elif name in _TRAINING_STATE:
            entries[name] = _TRAINING_STATE[name]
        elif isinstance(value, Tensor) and value.numel() == 1 and "." not in str(name):
            entries[str(name)] = "a number"  # e.g. best_acc1
        elif _holds_tensors(value):  # not known, so it must be shown: the family's rules will refuse it
            _add(tensors, f"{name}.", value if isinstance(value, Mapping) else {"": value}, file)
        else:
            entries[str(name)] = "not weights"
    return tensors, entries


def _add(
    tensors: dict[str, Tensor],
    prefix: str,
    values: Mapping[Any, Any],
    file: Path,
    seen: set[int] | None = None,
) -> None:
    seen = set() if seen is None else seen
    if id(values) in seen:  # 60 dicts, each twice in the next, are 2**60 keys
        raise ReleaseError(
            f"{file}: its dicts are nested too deeply for a checkpoint: one stands there twice"
        )
    seen.add(id(values))
    for name, value in values.items():
        key = re.sub(r"(?:^|(?<=\.))(?:(?:module|_orig_mod)\.)+", "", f"{prefix}{name}").rstrip(".")
        if isinstance(value, Mapping):
            _add(tensors, f"{key}.", value, file, seen)
        elif key in tensors:
            raise ReleaseError(f'{file}: two tensors are named "{shown(key)}"')
        else:  # what is no tensor is shown too: it stands where a tensor should
            tensors[key] = value if isinstance(value, Tensor) else torch.empty(0)
            if len(tensors) > _MOST_KEYS:
                raise ReleaseError(f"{file}: holds more than {_MOST_KEYS:,} tensors, expected an encoder's")


def _holds_tensors(value: object) -> bool:
    """Look at every object once: a pickle of a kilobyte can hold one list 2**60 times."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Tensor):
            return True
        if id(item) not in seen and isinstance(item, Mapping | list | tuple):
            seen.add(id(item))
            waiting.extend(item.values() if isinstance(item, Mapping) else item)
    return False
