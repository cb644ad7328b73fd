"""How fast images arrive: decoded once and kept, and a worker's share of streaming."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torchvision.transforms import v2

from tests.benchmarks.harness import Row, gate, medians, milliseconds
from tests.benchmarks.views import moco
from tests.data_fixtures import photo
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.batches import Samples
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


def worker_share(name: str, blurred: bool) -> Row:
    """What a core does for one image where the device does the rest, against all of it by torchvision."""
    with folder() as path:
        data = jpegs(path, 16, 500, 375)
        transforms = [each for each in moco(224, 23)[1].transforms if blurred or "Blur" not in repr(each)]
        view = v2.Compose([*transforms, v2.PILToTensor()])
        crop = v2.Compose([v2.RandomResizedCrop(224), v2.PILToTensor()])
        ours = Samples(data, [crop, crop])
        same = gate("size of a view", float(ours[(0, 0)][1][0].shape != view(data.image(0)).shape), 0)

        def whole() -> None:
            for place in range(16):
                image = data.image(place)
                _ = view(image), view(image)

        fast, slow = medians([lambda: [ours[(0, place)] for place in range(16)], whole], rounds=5)
        return Row(
            f"one core, one JPEG of 500x375 for two {name} views at 224: decode and crop",
            "torchvision, all operations", slow / fast, 1.5, milliseconds(fast / 16),
            milliseconds(slow / 16), same,
            note=f"16 cores: {16 * 16 / fast:,.0f} images/s in place of {16 * 16 / slow:,.0f}",
        )  # fmt: skip


def rows(device: torch.device) -> Iterator[Row]:
    """Yield the rows, which are the host's."""
    if device.type == "cpu":
        yield kept()
        yield worker_share("MoCo-v2", blurred=True)
        yield worker_share("MoCo-v1", blurred=False)
