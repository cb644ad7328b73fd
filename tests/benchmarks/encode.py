"""Encoding for evaluation: images in memory to features, by the encoder of a shipped release.

The peer is what timm's validate.py does at its best on a CPU: `--channels-last`, its batches of 256, for bf16
`--model-dtype bfloat16`; and that model with BatchNorm folded by torch.fx.
"""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.fx.experimental.optimization import fuse

import zoo
from tests.benchmarks.harness import Row, gate, timed
from zoo.evaluation import extract

RELEASE, SIZE, IMAGES = "cifar_resnet32.paco_cifar100_lt100", 32, 4096


def rows(device: torch.device) -> Iterator[Row]:
    """Measure ResNet-32 at 32 pixels in float32 and bfloat16."""
    images = torch.randn(IMAGES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)).to(device)
    yield _row(images, torch.float32, 1.0, 1e-5)
    yield _row(images, torch.bfloat16, 1.0, 0.05)


def _row(images: Tensor, dtype: torch.dtype, target: float, limit: float) -> Row:
    model = zoo.load(RELEASE, dtype=dtype, device=images.device).eval()
    last, size = torch.channels_last, 64 if images.device.type == "cpu" else 256
    theirs = {"channels_last": copy.deepcopy(model).to(memory_format=last)}
    theirs["channels_last, BatchNorm folded"] = fuse(copy.deepcopy(model).float()).to(
        dtype, memory_format=last
    )

    def plain(network: torch.nn.Module) -> Tensor:
        with torch.no_grad():
            parts = [x.to(dtype).contiguous(memory_format=last) for x in images.split(256)]
            return torch.cat([network(part).float().cpu() for part in parts])

    def ours() -> Tensor:
        return extract(model, images.split(size), device=images.device).features

    reference = plain(theirs["channels_last"])
    equal = gate("features", ((ours() - reference).norm() / reference.norm()).item(), limit)
    name = f"encode {IMAGES:,} images of 32x32, ResNet-32, {str(dtype).removeprefix('torch.')}"
    forms = [ours, *(partial(plain, network) for network in theirs.values())]
    return timed(name, [*theirs], forms, target, equal, images.device, 3)
