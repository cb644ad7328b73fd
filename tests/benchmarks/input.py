"""How fast images arrive: decoded once and kept, and for a GPU at 224 pixels by a worker process.

tests/test_data_loader.py holds a worker's crops equal to torchvision's of Pillow's images, within 1/255.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from tests.benchmarks.harness import Row, gate, timed
from tests.data_fixtures import photo
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.batches import derive_seed, random_crops
from zoo.data.config import ListFiles
from zoo.data.decode import decode_all
from zoo.data.ops import RandomResizedCrop


def jpegs(path: Path, count: int, width: int = 64, height: int = 64) -> ImageDataset:
    """Write `count` JPEGs, of 16 different pictures, and open them."""
    for number in range(count):
        if number < 16:
            photo(width, height, number).save(path / f"{number}.jpg", quality=90)
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
    with tempfile.TemporaryDirectory() as folder:
        yield from _crops(jpegs(Path(folder), 16, 500, 375), device)


def _crops(data: ImageDataset, device: torch.device) -> Iterator[Row]:
    """Measure what a worker does with a batch for a GPU: decode, crop twice, put together; one core each."""
    views, crop = [[RandomResizedCrop(size=224)]] * 2, v2.RandomResizedCrop(224, (0.2, 1.0))
    from_pillow = v2.Compose([crop, v2.PILToTensor()])

    def batch(make: Callable[[int], list[Tensor]], join: Callable[[list[Tensor]], Tensor]) -> list[Tensor]:
        return [join(list(view)) for view in zip(*map(make, range(len(data))), strict=True)]

    def seeded(make: Callable[[], list[Tensor]], index: int) -> list[Tensor]:
        torch.manual_seed(derive_seed("views", 0, 0, index))
        return make()

    def pillow(index: int) -> list[Tensor]:
        image = data.image(index)
        return seeded(lambda: [from_pillow(image) for _ in views], index)

    def tensors(index: int) -> list[Tensor]:
        encoded = torch.frombuffer(bytearray(data.item(index).read_bytes()), dtype=torch.uint8)
        image = decode_jpeg(encoded, ImageReadMode.RGB)
        return seeded(lambda: [crop(image) for _ in views], index)

    def ours() -> list[Tensor]:
        return batch(lambda index: random_crops(data, None, views, 0, (0, index)), torch.cat)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        peers = [("torchvision on PIL images", pillow, 1.3), ("torchvision on its decode_jpeg", tensors, 0.9)]
        for peer, make, target in peers:
            theirs = partial(batch, make, torch.stack)
            steps = [(a.int() - b.int()).abs().max() for a, b in zip(ours(), theirs(), strict=True)]
            equal = gate("pixels, in 255ths,", max(steps).item(), 1)
            name = "a worker decodes 16 JPEGs of 500x375 and crops each twice to 224x224"
            yield timed(name, peer, [ours, theirs], target, equal, device, rounds=15)
    finally:
        torch.set_num_threads(threads)
