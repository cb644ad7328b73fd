"""Augmented views: batched on the device, against torchvision on one PIL image at a time.

Both sides start from decoded 8-bit images in memory (ours on the device) and end with normalised float32
views on the device. On the CPU each side has one core, as PIL's workers have. Before that, a large tensor is
freed, as in any process that trains: from then on the C library keeps freed memory, and does not have the
kernel hand out and clear the same pages for every operation.
tests/test_data_views.py and tests/test_data_auto_augment.py hold each operation and its chances equal to
torchvision's.
"""

from collections.abc import Iterator, Sequence

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import AutoAugmentPolicy, v2
from torchvision.transforms.v2 import functional as tv

from tests.benchmarks.harness import Row, gate, timed
from tests.data_fixtures import MEAN, STD, photo
from zoo.data import TensorViews, ops

View = Sequence[ops.Op]
Pair = tuple[View, v2.Compose]  # the operations as recipes state them, and torchvision's own


def moco(size: int, kernel_size: int) -> Pair:
    """A view of MoCo-v2: a blur of about a tenth of the image, as SimCLR states it."""
    ours: View = [
        ops.RandomResizedCrop(size=size),
        ops.ColorJitter(),
        ops.Grayscale(),
        ops.GaussianBlur(kernel_size=kernel_size),
        ops.HorizontalFlip(),
    ]
    theirs = [
        v2.RandomResizedCrop(size, scale=(0.2, 1.0)),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(kernel_size, (0.1, 2.0))], p=0.5),
        v2.RandomHorizontalFlip(),
    ]
    return ours, v2.Compose(theirs)


_CIFAR = v2.AutoAugment(AutoAugmentPolicy.CIFAR10, fill=128)
PACO: Pair = (
    [ops.PadCrop(size=32), ops.HorizontalFlip(), ops.AutoAugment(policy="cifar10", variant="paco")],
    v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), _CIFAR]),
)
_WHOLE = {"scale": [1.0, 1.0], "ratio": [1.0, 1.0]}
WITHOUT_CHANCE: Pair = (
    [
        ops.RandomResizedCrop(size=24, **_WHOLE),
        ops.Grayscale(p=1.0),
        ops.GaussianBlur(p=1.0, sigma=[1.0, 1.0], kernel_size=5),
        ops.HorizontalFlip(p=1.0),
    ],
    v2.Compose(
        [
            *(v2.RandomResizedCrop(24, **_WHOLE), v2.Grayscale(3)),
            *(v2.GaussianBlur(5, 1.0), v2.RandomHorizontalFlip(1.0)),
        ]
    ),
)


def rows(device: torch.device) -> Iterator[Row]:
    """Measure views of 32x32 pixels, and of 224x224 on a GPU."""
    gpu = device.type == "cuda"
    torch.empty(30 * 2**20, dtype=torch.uint8)  # the large tensor: freed at once
    count = 2048 if gpu else 256
    two = [moco(32, 3)] * 2
    yield _against_pillow("two MoCo-v2 views of 32x32", two, 32, count, 200 if gpu else 8, device)
    yield _against_pillow("PaCo's first view of 32x32 without its hole", [PACO], 32, count, 1, device)
    if gpu:
        yield _against_pillow("two MoCo-v2 views of 224x224", [moco(224, 23)] * 2, 256, 256, 1, device)


def _against_pillow(
    name: str, views: Sequence[Pair], size: int, count: int, target: float, device: torch.device
) -> Row:
    images = [photo(size, size, seed) for seed in range(count)]
    batch = _batch(images).to(device)
    batched, one_by_one = TensorViews([ours for ours, _ in views], MEAN, STD), _OneByOne(views, device)
    generator = torch.Generator(device).manual_seed(0)
    equal = _same_pixels(images[:64], device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        both = [lambda: batched(batch, generator), lambda: one_by_one(images)]
        return timed(f"{name}, {count} images", "torchvision on PIL images", both, target, equal, device)
    finally:
        torch.set_num_threads(threads)


class _OneByOne:
    """What a loader's process does with torchvision, and the device afterwards."""

    def __init__(self, views: Sequence[Pair], device: torch.device) -> None:
        self._views = [v2.Compose([theirs, v2.PILToTensor()]) for _, theirs in views]
        self._mean, self._std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (MEAN, STD))

    def __call__(self, images: Sequence[Image.Image]) -> list[Tensor]:
        stacked = (torch.stack([view(each) for each in images]).to(self._mean.device) for view in self._views)
        return [(view * (1 / 255) - self._mean) / self._std for view in stacked]


def _same_pixels(images: list[Image.Image], device: torch.device) -> str:
    """A view with nothing left to chance has the same pixels."""
    views = TensorViews([WITHOUT_CHANCE[0]], MEAN, STD)
    (ours,) = views(_batch(images).to(device), torch.Generator(device))
    (theirs,) = _OneByOne([WITHOUT_CHANCE], device)(images)
    steps = (ours - theirs).abs() * torch.tensor(STD, device=device).view(3, 1, 1) * 255
    return gate("pixels of a view without chance, in 255ths,", float(steps.max()), 2.5)


def _batch(images: Sequence[Image.Image]) -> Tensor:
    return torch.stack([tv.pil_to_tensor(image) for image in images])
