"""Two MoCo-v2 views of 256 images of 32x32: batched on this machine's CPU against torchvision per PIL image.

Run: python -m tests.benchmarks.views [THREADS]. Both do the same work; the two are timed in turn, and the
ratio is that of the medians. tests/test_data_tensor_views.py holds their results equal in distribution.
"""

import statistics
import sys
import time

import torch
from torchvision.transforms.v2 import functional as tv

from tests.data_fixtures import MEAN, STD, photo
from zoo.data import TensorViews, ops
from zoo.data.torchvision_views import PILViews

VIEW = [
    ops.RandomResizedCrop(size=32),
    ops.ColorJitter(),
    ops.Grayscale(),
    ops.GaussianBlur(kernel_size=3),
    ops.HorizontalFlip(),
]


def main(threads: int, rounds: int = 15) -> None:
    """Print both times and their ratio."""
    torch.set_num_threads(threads)
    images = [photo(32, 32, seed) for seed in range(256)]
    batch = torch.stack([tv.pil_to_tensor(image) for image in images])
    generator = torch.Generator()
    batched, one_by_one = TensorViews([VIEW, VIEW], MEAN, STD), PILViews([VIEW, VIEW])
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        start = time.perf_counter()
        batched(batch, generator)
        middle = time.perf_counter()
        for image in images:
            one_by_one(image)
        times[0].append(middle - start)
        times[1].append(time.perf_counter() - middle)
    ours, theirs = (statistics.median(t[1:]) for t in times)  # the first round warms up
    ratio = theirs / ours
    print(f"{threads} threads: batched {ours * 1e3:.1f} ms, per image {theirs * 1e3:.1f} ms, {ratio:.1f}x")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
