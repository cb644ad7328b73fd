"""How fast images arrive that were decoded once and kept."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.benchmarks.harness import Row, gate, medians, milliseconds
from tests.data_fixtures import photo
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.config import ListFiles
from zoo.data.decode import decode_all


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder that also holds the cache."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = name
        try:
            yield Path(name)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


def jpegs(path: Path, count: int, width: int, height: int) -> ImageDataset:
    """Write `count` JPEGs of 16 different pictures and open them."""
    encoded = []
    for seed in range(min(count, 16)):
        buffer = io.BytesIO()
        photo(width, height, seed).save(buffer, "JPEG", quality=90)
        encoded.append(buffer.getvalue())
    for number in range(count):
        (path / f"{number}.jpg").write_bytes(encoded[number % len(encoded)])
    (path / "all.txt").write_text("".join(f"{n}.jpg {n % 2}\n" for n in range(count)))
    return open_dataset(DataConfig(source=ListFiles(train="all.txt", test="all.txt")), "train", path)


def opened(data: ImageDataset, cache: bool) -> torch.Tensor:
    """Decode, or open what is kept as a new process would: with its checksums compared."""
    return torch.from_numpy(decode_all(data, None, cache=cache))


def kept() -> Row:
    """The second opening of a data set against decoding it."""
    with folder() as path:
        data = jpegs(path, 4000, 64, 64)
        ours, theirs = opened(data, True), opened(data, False)
        equal = gate("pixels", (ours.int() - theirs.int()).abs().max().item(), 0)
        fast, slow = medians([lambda: opened(data, True), lambda: opened(data, False)], rounds=3)
        return Row(
            "open 4,000 JPEGs of 64x64, 47 MiB decoded, checksums compared", "decoding", slow / fast, 5.0,
            milliseconds(fast), milliseconds(slow), equal,
        )  # fmt: skip


def rows(device: torch.device) -> Iterator[Row]:
    """Yield the rows, which are the host's."""
    if device.type == "cpu":
        yield kept()
