"""How fast images arrive that were decoded once and kept."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch

from tests.benchmarks.harness import Row, gate, timed
from tests.data_fixtures import photo
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.config import ListFiles
from zoo.data.decode import decode_all


def jpegs(path: Path, count: int) -> ImageDataset:
    """Write `count` JPEGs of 64 x 64 pixels, of 16 different pictures, and open them."""
    for number in range(count):
        if number < 16:
            photo(64, 64, number).save(path / f"{number}.jpg", quality=90)
        else:
            (path / f"{number}.jpg").write_bytes((path / f"{number % 16}.jpg").read_bytes())
    (path / "all.txt").write_text("".join(f"{n}.jpg {n % 2}\n" for n in range(count)))
    return open_dataset(DataConfig(source=ListFiles(train="all.txt", test="all.txt")), "train", path)


def rows(device: torch.device) -> Iterator[Row]:
    """Measure the second opening of a data set, checksums compared, against decoding it; the host's work."""
    if device.type != "cpu":
        return
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, XDG_CACHE_HOME=folder):
        data = jpegs(Path(folder), 4000)
        ours, theirs = (lambda c=c: torch.from_numpy(decode_all(data, None, cache=c)) for c in (True, False))
        equal = gate("pixels", (ours().int() - theirs().int()).abs().max().item(), 0)
        name = "open 4,000 JPEGs of 64x64, 47 MiB decoded, checksums compared"
        yield timed(name, "decoding", [ours, theirs], 5.0, equal, device, rounds=3)
