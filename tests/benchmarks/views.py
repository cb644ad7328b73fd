"""Augmented views: batched on the device, against torchvision on one PIL image at a time.

Both sides start from decoded 8-bit images in memory (ours on the device) and end with normalised float32
views on the device. On the CPU each side has one core, as PIL's workers have; the note has ours with all
threads. Before that, a large tensor is freed, as in any process that trains: from then on the C library keeps
freed memory, and does not have the kernel hand out and clear the same pages for every operation.
tests/test_data_views.py and tests/test_data_auto_augment.py hold each operation equal to Pillow's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from tests.benchmarks.harness import Row, gate, medians, milliseconds
from tests.data_fixtures import MEAN, STD, photo
from zoo.data import TensorViews, ops
from zoo.data.views import PILViews

View = Sequence[ops.Op]


def moco(size: int, kernel_size: int) -> list[ops.Op]:
    """A view of MoCo-v2: a blur of about a tenth of the image, as SimCLR states it."""
    return [
        ops.RandomResizedCrop(size=size),
        ops.ColorJitter(),
        ops.Grayscale(),
        ops.GaussianBlur(kernel_size=kernel_size),
        ops.HorizontalFlip(),
    ]


PACO: list[ops.Op] = [
    ops.PadCrop(size=32),
    ops.HorizontalFlip(),
    ops.AutoAugment(policy="cifar10"),
    ops.Cutout(),
]
WITHOUT_CHANCE: list[ops.Op] = [
    ops.RandomResizedCrop(size=24, scale=[1.0, 1.0], ratio=[1.0, 1.0]),
    ops.Grayscale(p=1.0),
    ops.GaussianBlur(p=1.0, sigma=[1.0, 1.0], kernel_size=5),
    ops.HorizontalFlip(p=1.0),
]


def rows(device: torch.device) -> Iterator[Row]:
    """Measure views of 32x32 and of 224x224 pixels."""
    gpu = device.type == "cuda"
    torch.empty(30 * 2**20, dtype=torch.uint8)  # the large tensor: freed at once
    count = 2048 if gpu else 256
    two = [moco(32, 3)] * 2
    yield _against_pillow("two MoCo-v2 views", two, (32, 32), count, 200 if gpu else 8, device)
    yield _against_pillow("PaCo's AutoAugment view", [PACO], (32, 32), count, 1, device)
    note = "" if gpu else "for information: there is no target for it on a CPU"
    large = [moco(224, 23)] * 2
    yield _against_pillow(
        "two MoCo-v2 views", large, (256, 256), 256 if gpu else 16, 1 if gpu else 0, device, note
    )


def _against_pillow(
    name: str,
    views: Sequence[View],
    size: tuple[int, int],
    count: int,
    target: float,
    device: torch.device,
    note: str = "",
) -> Row:
    images = [photo(*size, seed) for seed in range(count)]
    batch = _batch(images).to(device)
    batched, one_by_one = TensorViews(views, MEAN, STD), _OneByOne(views, device)
    generator = torch.Generator(device).manual_seed(0)
    equal = [
        _same_pixels(images[:64], device),
        _same_statistics(batched, one_by_one, batch, images, generator),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours, theirs = medians([lambda: batched(batch, generator), lambda: one_by_one(images)], device=device)
    torch.set_num_threads(threads)
    if device.type == "cpu" and threads > 1:
        (all_threads,) = medians([lambda: batched(batch, generator)], device=device)
        note = "; ".join(filter(None, [note, f"ours with {threads} threads {milliseconds(all_threads)}"]))
    return Row(
        f"{name}, {count} images to {_side(views)}x{_side(views)}",
        "torchvision on PIL images",
        theirs / ours,
        target,
        milliseconds(ours),
        milliseconds(theirs),
        ", ".join(equal),
        note=note,
    )


class _OneByOne:
    """What the torchvision backend does in a worker, and on the device afterwards."""

    def __init__(self, views: Sequence[View], device: torch.device) -> None:
        self._views = PILViews(views)
        self._mean, self._std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (MEAN, STD))

    def __call__(self, images: Sequence[Image.Image]) -> list[Tensor]:
        views = zip(*(self._views(image) for image in images), strict=True)
        stacked = (torch.stack(view).to(self._mean.device) for view in views)
        return [(view * (1 / 255) - self._mean) / self._std for view in stacked]


def _same_pixels(images: list[Image.Image], device: torch.device) -> str:
    """A view with nothing left to chance has the same pixels."""
    ours = TensorViews([WITHOUT_CHANCE], MEAN, STD)(_batch(images).to(device), torch.Generator(device))[0]
    (theirs,) = _OneByOne([WITHOUT_CHANCE], device)(images)
    steps = (ours - theirs).abs() * torch.tensor(STD, device=device).view(3, 1, 1) * 255
    return gate("pixels of a view without chance, in 255ths,", float(steps.max()), 2.5)


def _same_statistics(
    batched: TensorViews,
    one_by_one: Callable[[Sequence[Image.Image]], list[Tensor]],
    batch: Tensor,
    images: list[Image.Image],
    generator: torch.Generator,
) -> str:
    """Mean and spread of the values of a view are distributed alike; 512 each at least."""
    rounds = -(-512 // len(images))
    torch.manual_seed(0)
    ours = [torch.cat(list(batched(batch, generator))) for _ in range(rounds)]
    theirs = [torch.cat(one_by_one(images)) for _ in range(rounds)]
    distance = 0.0
    for statistic in (Tensor.mean, Tensor.std):
        first, second = (
            torch.cat([statistic(v, (1, 2, 3)) for v in each]).sort().values.cpu() for each in (ours, theirs)
        )
        points = torch.cat([first, second])
        ranks = [torch.searchsorted(v, points, right=True) / len(v) for v in (first, second)]
        distance = max(distance, float((ranks[0] - ranks[1]).abs().max()))
    return gate("Kolmogorov-Smirnov distance of their means and spreads", distance, 0.1)


def _batch(images: Sequence[Image.Image]) -> Tensor:
    return torch.stack([tv.pil_to_tensor(image) for image in images])


def _side(views: Sequence[View]) -> int:
    return int(next(op.size for op in views[0] if hasattr(op, "size")))
