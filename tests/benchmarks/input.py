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
from tests.data_fixtures import MEAN, STD, make, photo
from zoo.backbones import keeping_memory
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.batches import _collate, derive_seed, random_crops
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
    """Measure the second opening of a data set against decoding it; the host's work."""
    if device.type != "cpu":
        return
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, XDG_CACHE_HOME=folder):
        data = jpegs(Path(folder), 4000)
        ours, theirs = (lambda c=c: torch.from_numpy(decode_all(data, None, cache=c)) for c in (True, False))
        equal = gate("pixels", (ours().int() - theirs().int()).abs().max().item(), 0)
        name = "open 4,000 JPEGs of 64x64, 47 MiB decoded"
        yield timed(name, "decoding", [ours, theirs], 5.0, equal, device, rounds=3)
    with tempfile.TemporaryDirectory() as folder, keeping_memory():
        data = jpegs(Path(folder), 16, 500, 375)
        yield from _crops(data, device)
        yield from _views(data, device)
    for width, height in ((500, 375), (1600, 1200), (4000, 3000)):
        with tempfile.TemporaryDirectory() as folder, keeping_memory():
            yield _photos(jpegs(Path(folder), 16, width, height), f"{width}x{height}", device)


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
        crops = partial(random_crops, data, None, views, 0)
        return _collate([(index, crops((0, index))) for index in range(len(data))])[1]

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


def _photos(data: ImageDataset, size: str, device: torch.device) -> Row:
    """Measure the batches of fine-tuning on photos, on one core, against what decoding them alone takes."""
    view = [{"op": "random_resized_crop", "size": 224}, "horizontal_flip"]
    loader = make(data, "stream", views=[view], batch_size=len(data))
    both = [
        lambda: next(iter(loader.stream(0, 1))).views,
        lambda: [data.image(index) for index in range(len(data))],
    ]
    name = f"the view of `zoo finetune` at 224x224 of 16 JPEGs of {size}, on the processor"
    return timed(name, "decoding alone, by Pillow", both, 0.9, "none, no crops", device, rounds=15)


def _views(data: ImageDataset, device: torch.device) -> Iterator[Row]:
    """Measure two MoCo-v2 views of JPEGs on one core of a processor; the peer need not be installed."""
    try:
        import albumentations as A
        import cv2
        from albumentations.pytorch import ToTensorV2
        from simplejpeg import decode_jpeg
    except ImportError as error:
        print(f"two MoCo-v2 views of JPEGs: not compared with albumentations, {error}")
        return
    cv2.setNumThreads(1)
    crop = {"op": "random_resized_crop", "size": 224}
    blur = {"op": "gaussian_blur", "kernel_size": 23}
    view = [crop, "color_jitter", "grayscale", blur, "horizontal_flip"]
    loader = make(data, "stream", views=[view] * 2, batch_size=len(data))
    theirs = A.Compose(
        [
            A.RandomResizedCrop((224, 224), scale=(0.2, 1.0)),
            A.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, p=0.8),
            *(A.ToGray(p=0.2), A.GaussianBlur(blur_limit=0, sigma_limit=(0.1, 2.0), p=0.5)),
            *(A.HorizontalFlip(p=0.5), A.Normalize(MEAN, STD), ToTensorV2()),
        ]
    )

    def peer() -> list[Tensor]:
        images = [decode_jpeg(data.item(index).read_bytes()) for index in range(len(data))]
        return [torch.stack([theirs(image=image)["image"] for image in images]) for _ in range(2)]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        both = [lambda: next(iter(loader.stream(0, 1))).views, peer]
        name = "two MoCo-v2 views at 224x224 of 16 JPEGs of 500x375, on the processor"
        rival = "albumentations and simplejpeg"
        yield timed(name, rival, both, 1.0, "none, other draws", device, rounds=15)
    finally:
        torch.set_num_threads(threads)
