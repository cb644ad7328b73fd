"""Other projects' checkpoints, which `zoo convert` reads: archives of torch, old files, safetensors."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save

import zoo
from tests import convert_helpers
from tests.fuzz import mutate
from tests.fuzz.case import Case
from tests.fuzz.kinds import releases
from zoo.conversion import FAMILIES

_NAMES = ("given.", "out", "family", "centers: ")


@cache
def _state() -> dict[str, torch.Tensor]:
    return convert_helpers.randomised(convert_helpers.PaCo()).state_dict()


def _content() -> dict[str, Any]:
    return {
        "epoch": 12,
        "arch": "resnet",
        "state_dict": {f"module.{key}": value for key, value in _state().items()},
    }


@cache
def _seed(old: bool) -> bytes:
    return _saved(_content(), old=old)


def _saved(content: Any, *, old: bool = False) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=not old)
    return stream.getvalue()


class _Calls:
    """An object whose pickle calls a function, as hostile files hold it."""

    def __init__(self, function: str, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        module, _, name = self.function.rpartition(".")
        target: Any = __import__(module, fromlist=[name])
        return getattr(target, name), self.arguments


def _payloads() -> list[_Calls]:
    mark = "fuzz-canary"
    return [
        _Calls("os.system", f"touch {mark}"),
        _Calls("builtins.exec", "import os; os.environ['ZOO_FUZZ_CANARY'] = '1'"),
        _Calls("builtins.eval", "__import__('os').putenv('ZOO_FUZZ_CANARY', '1')"),
        _Calls("subprocess.check_output", ["touch", mark]),
        _Calls("pathlib.Path", mark),
        _Calls("builtins.open", mark, "w"),
        _Calls("builtins.bytearray", 50 << 30),
        _Calls("builtins.bytes", 50 << 30),
        _Calls("torch.zeros", 50 << 30),
        _Calls("torch.load", mark),
        _Calls("collections.OrderedDict", [("a", 1)]),
        _Calls("builtins.range", 1 << 40),
        _Calls("builtins.list", range(1 << 40)),
        _Calls("builtins.set", range(1 << 40)),
        _Calls("torch.Size", [1 << 40]),
        _Calls("torch.device", "cuda:0"),
        _Calls("builtins.getattr", "x", "upper"),
        _Calls("builtins.complex", 1, 2),
        _Calls("argparse.Namespace"),
        _Calls("pathlib.PosixPath", "a" * 1000),
    ]


_ODD_TENSORS: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda t: torch.zeros(1).expand(1 << 40),
    lambda t: torch.zeros(1).expand(1 << 40, 64),
    lambda t: torch.zeros(1).expand(2**20, 2**20, 2**20),
    lambda t: t.to("meta") if t.ndim else t,
    lambda t: torch.zeros(1 << 30, 1 << 30, device="meta"),
    lambda t: t.to(torch.complex64),
    lambda t: t.bool(),
    lambda t: t.to(torch.float64),
    lambda t: t.half(),
    lambda t: t.to(torch.float8_e4m3fn),
    lambda t: t.to_sparse() if t.ndim else t,
    lambda t: torch.sparse_coo_tensor(torch.zeros(2, 0), [], (1 << 40, 1 << 20)),
    lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    lambda t: t * float("nan"),
    lambda t: t.float() * 1e38 * 1e5,
    lambda t: t[..., :0],
    lambda t: t.unsqueeze(0),
    lambda t: t.reshape(-1),
    lambda t: t.flip(0) if t.ndim else t,
    lambda t: torch.empty(0),
    lambda t: torch.tensor(3),
    lambda t: torch.nn.Parameter(t.float()),
    lambda t: None,
    lambda t: [t],
    lambda t: {"x": t},
    lambda t: t.tolist() if t.numel() < 99 else "x",
    lambda t: "x",
    lambda t: float("nan"),
    lambda t: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    lambda t: t.mT if t.ndim > 1 else t,
    lambda t: t.conj() if t.is_complex() else torch.view_as_complex(torch.zeros(4, 2)).conj(),
)


def _odd_content(random: Random) -> tuple[Any, str]:
    content = _content()
    state, notes = content["state_dict"], []
    for _ in range(random.choice((1, 1, 2, 4))):
        heads = [key for key in state if "linear" in key or "fc" in key]
        key = random.choice(heads if random.random() < 0.4 else list(state))
        way = random.randrange(8)
        if way < 4:
            number = random.randrange(len(_ODD_TENSORS))
            if isinstance(state[key], torch.Tensor):
                with contextlib.suppress(
                    RuntimeError, NotImplementedError, IndexError, TypeError
                ):  # of some shapes only
                    state[key] = _ODD_TENSORS[number](state[key])
            notes.append(f"{key} odd tensor {number}")
        elif way == 4:
            place = random.choice((content, state))
            place[random.choice((*mutate.WORDS[:60], key, 7, None, (1,)))] = random.choice(
                (mutate.value(random), torch.zeros(2), *_payloads())
            )
            notes.append("an odd entry")
        elif way == 5:
            del state[key]
            notes.append(f"no {key}")
        elif way == 6:
            new = random.choice(
                (key.replace("module.", ""), f"module.{key}", key.upper(), f"{key}.weight", "module.")
            )
            state[new] = state[key]
            notes.append(f"{key} also as {new}")
        else:
            content["epoch"] = mutate.value(random)
            notes.append("epoch")
    if random.random() < 0.1:
        content = random.choice(
            (state, [state], state.values() and next(iter(state.values())), {}, {"model": state}, 5)
        )
        notes.append("another whole")
    return content, "; ".join(notes)


def _case(random: Random, folder: Path, name: str, content: bytes, note: str) -> Case:
    file = folder / name
    file.write_bytes(content)
    family = "paco" if random.random() < 0.8 else random.choice(tuple(FAMILIES))
    arch = (
        "cifar_resnet20"
        if random.random() < 0.9
        else random.choice(("resnet18", "cifar_resnet32", "resnet50"))
    )
    encoder = "query" if random.random() < 0.8 else "momentum"

    def convert() -> None:
        release = zoo.convert(file, family, folder / "out", arch=arch, encoder=encoder)
        zoo.open(release.path).load(head="centers" if release.centers is not None else None)

    return Case({"convert": convert}, _NAMES, f"{family} {arch} {encoder}: {note}")


def archives(random: Random, folder: Path) -> Case:
    """Files of torch >= 1.6: a zip archive of a pickle and tensors."""
    way, note = random.randrange(8), "bytes"
    if way < 3:
        content, note = _odd_content(random)
        try:
            made = _saved(content)
        except (RuntimeError, NotImplementedError, TypeError, UnicodeError, pickle.PicklingError):
            made, note = _seed(False)[:-1000], f"{note}, cut: torch cannot save it"
    elif way == 3:
        payload = random.choice(_payloads())
        content = {"epoch": 1, "state_dict": _content()["state_dict"], "x": payload}
        made, note = _saved(random.choice((payload, content))), payload.function
    elif way < 6:
        made, note = _with_pickle(random), "the pickle in the archive"
    elif way == 6:
        made, note = _zipped(random)
    else:
        made = mutate.octets(random, _seed(False))
    return _case(random, folder, random.choice(("given.pth", "given.ckpt", "given.pth.tar")), made, note)


_OPCODES = (
    *(
        b"cos\nsystem\n(S'touch fuzz-canary'\ntR.",
        b"c__builtin__\nexec\n(S'1/0'\ntR",
        b"\x8a\xff" + bytes(255),
    ),
    *(
        b"\x8b\xff\xff\xff\x7f",
        b"X\xff\xff\xff\x7f",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"(" * 5000,
        b"]" * 999,
    ),
    *(
        b"h\xff",
        b"j\xff\xff\xff\xff",
        b"r\xff\xff\xff\x7f",
        b"Q",
        b"R",
        b"b",
        b"\x81",
        b"s",
        b"u",
        b"a",
        b"e",
        b"0",
    ),
    *(
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ccollections\nOrderedDict\n)R",
        b"cbuiltins\nbytearray\n",
        b"\x93",
    ),
    *(
        b"ctorch\nFloatStorage\n",
        b"ctorch.storage\nUntypedStorage\n",
        b"czoo_fuzz_canary\nx\n",
        b"}",
        b")",
        b"N",
        b"t",
    ),
)


def _with_pickle(random: Random) -> bytes:
    """Change the pickle, and mend the archive's checksum, so that it is read."""
    with zipfile.ZipFile(io.BytesIO(_seed(False))) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith("data.pkl"))
        data = archive.read(name)
    if random.random() < 0.5:
        at = random.randrange(2, len(data))
        data = data[:at] + random.choice(_OPCODES) + data[at:]
    elif random.random() < 0.5:  # sizes, strides and offsets of the tensors
        places = [at for at in range(len(data) - 1) if data[at : at + 1] in b"KMJ" and data[at + 1] < 65]
        at = random.choice(places)
        big = b"\x8a\x08" + (random.choice(mutate.BOUNDS) % 2**63).to_bytes(8, "little")
        data = data[:at] + big + data[at + {b"K": 2, b"M": 3, b"J": 5}[data[at : at + 1]] :]
    else:
        data = mutate.octets(random, data)
    return _archived({name: data})


def _entry(name: str, compression: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    """An entry of a fixed time, so that a case is always the same."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = compression
    return entry


def _archived(changed: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(_seed(False))) as archive,
        zipfile.ZipFile(stream, "w", compression) as other,
    ):
        for entry in archive.namelist():
            other.writestr(_entry(entry, compression), changed.get(entry, archive.read(entry)))
    return stream.getvalue()


def _zipped(random: Random) -> tuple[bytes, str]:
    """Change the archive: entries that are missing, twice, compressed, of other sizes than they say."""
    way = random.randrange(5)
    with zipfile.ZipFile(io.BytesIO(_seed(False))) as archive:
        names = archive.namelist()
        content = {name: archive.read(name) for name in names}
    if way == 0:
        return _archived({}, zipfile.ZIP_DEFLATED), "compressed"
    if way == 1:
        return _archived(
            {random.choice(names): random.choice((b"", b"\0" * (60 << 20), b"x"))}
        ), "other entry"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as other:
        left = random.choice(names)
        for name in names:
            if way == 2 and name == left:
                continue
            renamed = (
                random.choice((f"../{name}", f"/{name}", name.upper(), f"{name}\0x"))
                if name == left
                else name
            )
            other.writestr(_entry(renamed if way == 3 else name), content[name])
            if way == 4 and name == left:
                other.writestr(_entry(f"{name}."), random.randbytes(9))
    return stream.getvalue(), ("", "", "an entry less", "an entry renamed", "an entry more")[way]


def legacy(random: Random, folder: Path) -> Case:
    """Files of torch before 1.6, and plain pickles: one stream of opcodes."""
    way, note = random.randrange(5), "bytes"
    if way == 0:
        payload = random.choice(_payloads())
        made = random.choice(
            (
                pickle.dumps(payload, protocol=random.randrange(6)),
                _saved({"a": payload, **_content()}, old=True),
            )
        )
        note = payload.function
    elif way == 1:
        at = random.randrange(2, 20_000)
        made, note = _seed(True)[:at] + random.choice(_OPCODES) + _seed(True)[at:], "opcodes"
    elif way == 2:
        content, note = _odd_content(random)
        try:
            made = _saved(content, old=True)
        except (RuntimeError, NotImplementedError, TypeError, UnicodeError, pickle.PicklingError):
            made, note = _seed(True)[:-1000], "cut"
    elif way == 3:
        head = mutate.octets(random, _seed(True)[:30_000])
        made, note = head + _seed(True)[30_000:], "head"
    else:
        made = mutate.octets(random, _seed(True))
    return _case(random, folder, "given.pth", made, note)


@cache
def _plain() -> bytes:
    return save({key: value.contiguous() for key, value in _state().items()})


def safetensors(random: Random, folder: Path) -> Case:
    """Checkpoints as safetensors."""
    made = releases.safetensors(random, _plain())
    if random.random() < 0.05:
        made = struct.pack("<Q", 2**62) + b"{" + made[9:]
    return _case(random, folder, random.choice(("given.safetensors", "given.bin")), made, "safetensors")
