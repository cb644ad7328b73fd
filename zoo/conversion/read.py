"""From a checkpoint file to its tensors, without running anything that the file brings.

`torch.load(weights_only=True)` reads pickles with an interpreter of its own that knows tensors, plain values
and a list of harmless classes. Files of torch >= 1.6 are mapped: what is not used, such as optimizer states,
is never read. Older ones (MoCo v1's and v2's own) can only be read as a whole.
"""

from __future__ import annotations

import mmap
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from zoo.errors import ReleaseError, first_line, one_line
from zoo.files import is_dir, is_file
from zoo.torch_files import check_archive, refuse_bytearrays

_WEIGHTS = ("state_dict", "model")  # entries that hold the trained weights
_MOST_KEYS = 20_000  # the largest encoders have a few thousand
_DEEPEST = 16  # dicts within dicts; PyTorch's own state dicts have one level
_LAST_EPOCH = 1 << 31
_LONGEST_NAME = 200  # characters of a file's word that a message repeats
_LEFT_OUT = {  # entries that are no weights
    "settings of the training": ("args", "hyper_parameters", "opt"),
    "state of the optimizer": ("optimizer", "optimizer_states"),
    "state of the schedule": ("lr_scheduler", "lr_schedulers", "scheduler"),
    "state of mixed precision": ("amp", "amp_scaler", "scaler"),
    "state of the loss": ("criterion",),
    "state of Lightning": ("callbacks", "loops"),
    "queue or memory bank": ("contrast",),
}


class _Inert:
    """Takes the place of classes that authors save beside the weights, and keeps nothing.

    `torch.load` looks names up in a table (`safe_globals`). These names lead here: neither the class that the
    file names nor its module is imported or called, so it does not matter what the file passes to it.
    """

    def __new__(cls, *_: object, **__: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class _Settings(_Inert):
    """Takes the place of `argparse.Namespace`, and keeps its values."""

    values: Mapping[Any, Any] = {}

    def __setstate__(self, state: object) -> None:
        self.values = state if isinstance(state, dict) else {}


_HARMLESS: list[Any] = [
    (_Settings, "argparse.Namespace"),  # timm, SupContrast, MAE: the command line's settings
    *((_Inert, f"pathlib.{system}Path") for system in ("Posix", "Windows")),  # Lightning's callbacks
    *((_Inert, f"numpy.{name}") for name in ("ndarray", "dtype")),  # accuracies as NumPy's numbers
    *(
        (_Inert, f"numpy.{core}.multiarray.{name}")  # `_core` from NumPy 2.0 on
        for core in ("core", "_core")
        for name in ("scalar", "_reconstruct")
    ),
]


class Checkpoint(NamedTuple):
    """What a file holds.

    Attributes:
        tensors: of the model, by key; `module.` of DistributedDataParallel and `_orig_mod.` of torch.compile
            are removed, entries that are no part of the model's `state_dict` keep their name as a prefix.
        entries: what else the file holds and is left out: name -> what it is.
        epoch: as the file says, or None.
        arch: the architecture that the file names, or None; MoCo's and PaCo's do, in their own words.
        settings: the training's command line, where the file has it as `args`; of any plain values.
    """

    tensors: dict[str, Tensor]
    entries: dict[str, str]
    epoch: int | None
    arch: str | None
    settings: Mapping[Any, Any]


def read_checkpoint(file: Path) -> Checkpoint:
    """Read a checkpoint (.pth, .pth.tar, .ckpt, .pt, .bin) or a .safetensors file.

    Raises:
        ReleaseError: when the file is missing, damaged, holds no weights, or cannot be read without running
            code; then the message names the class that it asks for.
    """
    if not is_file(file):
        raise ReleaseError(f"{file}: found {'a folder' if is_dir(file) else 'no such file'}, expected one")
    try:
        content = load_file(file) if _is_safetensors(file) else _load(file)
    except SafetensorError as error:
        raise ReleaseError(f"{file}: damaged safetensors: {error}") from None
    except OSError as error:
        raise ReleaseError(f"{file}: cannot be read: {first_line(error)}") from None
    if not isinstance(content, Mapping):
        raise ReleaseError(f"{file}: found a {type(content).__name__}, expected a dict of tensors")
    tensors, entries = _split(content, file)
    if not tensors:
        found = summary(content) or "nothing"
        raise ReleaseError(f"{file}: holds no weights: found {found}, expected {' or '.join(_WEIGHTS)}")
    arch, epoch, args = (content.get(key) for key in ("arch", "epoch", "args"))
    if type(epoch) is int and 0 <= epoch < _LAST_EPOCH:
        entries.pop("epoch", None)
    else:
        epoch = None
    settings = args.values if isinstance(args, _Settings) else args if isinstance(args, Mapping) else {}
    return Checkpoint(tensors, entries, epoch, arch if isinstance(arch, str) else None, settings)


def _is_safetensors(file: Path) -> bool:
    """By content, 8 bytes of length and a JSON object: a copy in a cache may have any name."""
    with file.open("rb") as stream:
        start = stream.read(24)
    if start.startswith(b"version https://git-lfs"):
        raise ReleaseError(
            f"{file}: this is Git LFS's pointer to the file, not the file; run `git lfs pull` there"
        )
    if start[8:9] == b"{":
        return True
    if file.suffix.lower() == ".safetensors":  # by which torch.load goes
        raise ReleaseError(f"{file}: no safetensors by its content; if it is another format's, rename it")
    return False


def _load(file: Path) -> Any:
    mapped = zipfile.is_zipfile(file)
    try:
        if mapped:
            check_archive(file)
        elif file.stat().st_size:
            with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                refuse_bytearrays(data, file)
        with torch.serialization.safe_globals(_HARMLESS):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except (ReleaseError, OSError):
        raise
    except Exception as error:  # a damaged or hostile pickle can make its interpreter raise anything
        asked = re.search(r"GLOBAL (\S+) ?(?:was not|whose)", str(error))
        raise ReleaseError(f"{file}: {_needs_code(asked[1]) if asked else _DAMAGED}") from None


# what else torch says is of its reader's inside, and another text for every byte
_DAMAGED = "damaged, or no checkpoint; expected a file that torch.save, by default, or safetensors wrote"


def _needs_code(name: str) -> str:
    return (
        f'reading it would run code: it asks for "{_short(name)}", and only tensors and plain values are '
        "read. If you trust the file, save its tensors alone where its code is installed; of a whole model: "
        "torch.save(torch.load(FILE, weights_only=False).state_dict(), NEW_FILE); of a dict with weights: "
        'torch.save(torch.load(FILE, weights_only=False)["state_dict"], NEW_FILE)'
    )


def _split(content: Mapping[Any, Any], file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tell the model's tensors from what else lies beside them."""
    tensors: dict[str, Tensor] = {}
    entries: dict[str, str] = {}
    if all(isinstance(value, Tensor) for value in content.values()):
        content = {_WEIGHTS[0]: content}
    for name, value in content.items():
        if name in _WEIGHTS and isinstance(value, Mapping):
            _add(tensors, value, "", file)
        elif known := [what for what, names in _LEFT_OUT.items() if name in names]:
            entries[name] = known[0]
        elif isinstance(value, Tensor) and value.numel() == 1 and "." not in str(name):
            entries[str(name)] = "a number"  # e.g. best_acc1
        elif isinstance(value, Tensor):  # not known: the family's rules will refuse it
            _add(tensors, {name: value}, "", file)
        elif isinstance(value, Mapping) and any(
            isinstance(leaf, Tensor) for _, leaf in islice(_leaves(value, "", file), _MOST_KEYS)
        ):
            _add(tensors, value, f"{name}.", file)  # the average, or not known
        else:
            entries[str(name)] = "not weights"
    return tensors, entries


def _add(tensors: dict[str, Tensor], values: Mapping[Any, Any], prefix: str, file: Path) -> None:
    for key, value in _leaves(values, prefix, file):
        if key in tensors:
            raise ReleaseError(f'{file}: two tensors are named "{_short(key)}"')
        if isinstance(value, Tensor) and not _is_plain(value):
            raise ReleaseError(f'{file}: "{_short(key)}" is sparse, quantized, or without values of its own')
        # what is no tensor is shown too, without values: it stands where a tensor should
        tensors[key] = value if isinstance(value, Tensor) else torch.empty(0)
        if len(tensors) > _MOST_KEYS:
            raise ReleaseError(f"{file}: holds more than {_MOST_KEYS:,} tensors, expected an encoder's")


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor can be computed with: none that is sparse, or a view of few values as very many."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _leaves(
    values: Mapping[Any, Any], prefix: str, file: Path, depth: int = 0
) -> Iterator[tuple[str, object]]:
    """Yield what lies in nested dicts by its joined key. A dict may lie in itself, or in many places."""
    if depth > _DEEPEST:
        raise ReleaseError(f"{file}: its dicts are nested too deeply for a checkpoint")
    for name, value in values.items():
        key = re.sub(r"(?:^|(?<=\.))(?:(?:module|_orig_mod)\.)+", "", f"{prefix}{name}").rstrip(".")
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.", file, depth + 1)
        else:
            yield key, value


def summary(keys: Iterable[object], limit: int = 10) -> str:
    """List keys of a file; where they are many, by their first component with counts: `layer4.* (60)`."""
    names = [_short(key) for key in keys]
    if len(names) > limit:
        groups = Counter(name.partition(".")[0] for name in names)
        alone = {name.partition(".")[0]: name for name in names}
        names = [f"{key}.* ({count})" if count > 1 else alone[key] for key, count in groups.items()]
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def _short(name: object) -> str:
    """Return a word of a file, which may be anything, cut and as one line that no terminal obeys."""
    text = one_line(str(name)[:_LONGEST_NAME])
    return text if len(text) < _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."
