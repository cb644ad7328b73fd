"""Checkpoint files: downloaded by name, and read as tensors without running any code in them."""

from __future__ import annotations

import hashlib
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from os.path import isfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from zoo.convert.families import PUBLISHED
from zoo.errors import ReleaseError, did_you_mean, few

_WEIGHTS = ("state_dict", "model", "model_state_dict", "net", "weights")  # hold the trained weights
_TRAINING = {  # entries of the training's state and settings, with tensors or not
    *("args", "hyper_parameters", "opt", "optimizer", "optimizer_states", "amp", "amp_scaler", "scaler"),
    *("lr_scheduler", "lr_schedulers", "scheduler", "callbacks", "loops", "criterion", "contrast"),
}


class _Inert:
    """Stands in for classes that authors save beside the weights, and keeps their plain values.

    `torch.load` looks names up in a table (`safe_globals`): the class named in the file is never imported.
    """

    values: Mapping[Any, Any] = {}

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.values = state if isinstance(state, dict) else {}


_HARMLESS: list[Any] = [
    *((_Inert, name) for name in ("argparse.Namespace", "numpy.ndarray", "numpy.dtype")),  # accuracies
    *((_Inert, f"pathlib.{of}Path") for of in ("Posix", "Windows", "_local.Posix", "_local.Windows")),
    *((_Inert, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((_Inert, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]


class Checkpoint(NamedTuple):
    """The content of a checkpoint file."""

    tensors: dict[str, Tensor]  # by key, without wrappers' `module.` and `_orig_mod.`
    entries: dict[str, str]  # other entries, which are left out: name -> what it is
    arch: str | None  # as the file states it; MoCo's and PaCo's do, by their own names
    settings: Mapping[Any, Any]  # the training's command line (`args`); any plain values


def fetch(name: str) -> Path:
    """Download a published checkpoint to torch's cache, if missing, check its MD5, and return its path."""
    if name not in PUBLISHED:
        raise ReleaseError(f'no file "{name}", and no published checkpoint.{did_you_mean(name, PUBLISHED)}')
    entry = PUBLISHED[name]
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(entry.url).name
    try:
        if not isfile(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(entry.url, str(file))
        with file.open("rb") as stream:
            md5 = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise ReleaseError(f"{name}: {entry.url}: {error}") from None
    if not md5.startswith(entry.md5):
        file.unlink()
        raise ReleaseError(f"{name}: from {entry.url}: found MD5 {md5}, expected {entry.md5}...; try again")
    return file


def read_checkpoint(file: Path) -> Checkpoint:
    """Read a checkpoint (.pth, .pth.tar, .ckpt, .pt, .bin) or a .safetensors file.

    Raises:
        ReleaseError: if the file is missing, damaged, has no weights, or cannot be read without running
            code; in the last case the message names the class that it asks for.
    """
    if not isfile(file):
        raise ReleaseError(f"{file}: no such file")
    try:
        content = _load(file)
        leaves = {name: list(_leaves({name: value})) for name, value in content.items()}
    except Exception as error:  # a damaged or hostile file can make its reader raise anything
        if asked := re.search(r"GLOBAL (\S+) ?(?:was not|whose)", str(error)):
            raise ReleaseError(
                f'{file}: reading it would run code: it asks for "{asked[1][:200]}", and only tensors and '
                "plain values are read; save its state_dict() where its code is installed"
            ) from None
        raise ReleaseError(f"{file}: damaged, or no dict of torch.save or safetensors") from None
    tensors, entries = dict[str, Tensor](), dict[str, str]()
    for name, found in leaves.items():
        value = content[name]
        number = isinstance(value, Tensor) and value.numel() == 1 and "." not in str(name)  # e.g. best_acc1
        if name in _TRAINING or number or not any(isinstance(leaf, Tensor) for _, leaf in found):
            entries[str(name)] = "not weights"
            continue
        for key, leaf in found:
            # a value that is no tensor is listed, too, as an empty one: it is where a tensor should be
            tensor = leaf if isinstance(leaf, Tensor) else torch.empty(0)
            if key in tensors or tensor.nbytes > file.stat().st_size:
                raise ReleaseError(f'{file}: "{key}" is there twice, or has more values than the file')
            tensors[key] = tensor
    if not tensors:
        raise ReleaseError(f"{file}: holds no weights: found {few(content, 10) or 'nothing'}")
    arch, args = content.get("arch"), content.get("args")
    settings = args.values if isinstance(args, _Inert) else args if isinstance(args, Mapping) else {}
    return Checkpoint(tensors, entries, arch if isinstance(arch, str) else None, settings)


def _load(file: Path) -> Any:
    """Read a file with torch's restricted unpickler, which allows tensors, plain values and `_HARMLESS`.

    Files of torch >= 1.6 are memory-mapped: what is not used, such as optimizer states, is never read.
    """
    with file.open("rb") as stream:
        start = stream.read(9)
    if start[8:] == b"{" or file.suffix.lower() == ".safetensors":  # a copy in a cache may have any name
        return load_file(file)
    with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals(_HARMLESS):
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))


def _leaves(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the leaves of nested dicts with dotted keys, which omit wrappers and the name of the weights."""
    for name, value in values.items():
        key = "" if not prefix and name in _WEIGHTS and isinstance(value, Mapping) else f"{prefix}{name}"
        key = re.sub(r"(?:^|(?<=\.))(?:(?:module|_orig_mod)\.)+", "", key).rstrip(".")
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}." if key else "")
        else:
            yield key, value
