"""How fast images arrive: decoded once and kept, and streamed."""

from __future__ import annotations

import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from tests.benchmarks.harness import Row, gate, medians, milliseconds, synchronize
from tests.data_fixtures import MEAN, STD, photo
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, TrainLoader, ViewsConfig, open_dataset
from zoo.data.cache import decode_all
from zoo.data.config import ListFiles
from zoo.data.streamed import Samples, augment, split_view
from zoo.data.views import PILViews

_COMMON = [
    {"op": "random_resized_crop", "size": 224},
    {"op": "color_jitter"},
    {"op": "grayscale"},
    {"op": "horizontal_flip"},
]
VIEWS = {"MoCo-v2": [*_COMMON, {"op": "gaussian_blur"}], "MoCo-v1": _COMMON}
CPU = torch.device("cpu")


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


def views_of(name: str, backend: str, workers: int) -> ViewsConfig:
    """Two views of 224 pixels."""
    section = {"backend": backend, "workers": workers, "train": [VIEWS[name]] * 2, "eval": {"size": 224}}
    return parse(ViewsConfig, section, "benchmark")


def opened(data: ImageDataset, cache: bool) -> torch.Tensor:
    """Decode, or open what is kept as a new process would: with its checksums compared."""
    return decode_all(data, None, device=CPU, cache=cache)


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


def statistics_of(batches: Iterator) -> torch.Tensor:
    """Mean and spread of the channels, and of neighbours' differences, over the images of one view."""
    views = torch.cat([batch.views[0].cpu() for batch in batches])
    edges = views.diff(dim=-1).abs().mean((1, 2, 3))[:, None]
    return torch.cat([views.mean((2, 3)), views.std((2, 3)), edges], 1).mean(0)


def streamed(device: torch.device, name: str, batch: int = 32, workers: int = 2) -> Row:
    """Crops travel and the device does the rest, against all of it per image in the same workers."""
    with folder() as path:
        data = jpegs(path, batch * 2, 500, 375)

        def loader(backend: str) -> TrainLoader:
            views = views_of(name, backend, workers)
            return TrainLoader(
                data, views, mean=MEAN, std=STD, batch_size=batch, drop_last=True, seed=0, device=device
            )

        feeds = [loader(backend) for backend in ("stream", "torchvision")]
        orders = [
            torch.cat([b.index.cpu() for b in feed.stream(0, 4)]).tolist()
            for feed in (*feeds, loader("tensor"))
        ]
        same = gate("order of three backends", float(not orders[0] == orders[1] == orders[2]), 0)
        ours, theirs = (statistics_of(feed.stream(0, 12)) for feed in feeds)
        same += "; " + gate(f"statistics of {12 * batch} views", (ours - theirs).abs().max().item(), 0.15)
        times: list[list[float]] = [[], []]
        for _ in range(3):
            for feed, taken in zip(feeds, times, strict=True):
                batches = feed.stream(0, 7)
                next(batches)  # the workers start
                begin = time.perf_counter()
                for _ in batches:
                    pass
                synchronize(device)
                taken.append((time.perf_counter() - begin) / 6)
        fast, slow = (statistics.median(taken) for taken in times)
        return Row(
            f"stream {batch} JPEGs of 500x375 to two {name} views at 224, {workers} workers",
            "backend torchvision", slow / fast, 0.0 if device.type == "cpu" else 1.2, milliseconds(fast),
            milliseconds(slow), same,
            note="for information: on a CPU the batched operations share the workers' cores"
            if device.type == "cpu" else "",
        )  # fmt: skip


def worker_share(name: str) -> Row:
    """What a core does for one image where the device does the rest, against all of it."""
    with folder() as path:
        data = jpegs(path, 16, 500, 375)
        views = views_of(name, "stream", 0).train
        crops = [split_view(view)[0] for view in views]
        ours, theirs, plain = (
            Samples(data, partial(augment, views=PILViews(each), seed=0, image_size=None))
            for each in (crops, views, [[view[0]] for view in views])
        )
        crop, expected = (samples[(0, 3)][0].int() for samples in (ours, plain))
        same = gate("crop", (crop - expected).abs().max().item(), 0)

        def go(samples: Samples) -> Callable[[], object]:
            return lambda: [samples[(0, i)] for i in range(16)]

        fast, slow = medians([go(ours), go(theirs)], rounds=5)
        return Row(
            f"one core, one JPEG of 500x375 for two {name} views at 224: decode and crop",
            "all operations per image", slow / fast, 1.5, milliseconds(fast / 16), milliseconds(slow / 16),
            same,
            note=f"16 cores: {16 * 16 / fast:,.0f} images/s in place of {16 * 16 / slow:,.0f}"
            + ("; torchvision's blur of 23 taps alone takes most of it" if name == "MoCo-v2" else ""),
        )  # fmt: skip


def rows(device: torch.device) -> Iterator[Row]:
    """Yield the rows for `device`."""
    if device.type == "cpu":
        yield kept()
        yield from map(worker_share, VIEWS)
    for name in VIEWS:
        if device.type == "cpu":
            yield streamed(device, name)
        else:
            yield streamed(device, name, batch=256, workers=min(16, os.cpu_count() or 1))
