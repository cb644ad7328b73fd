"""`zoo.load` against `timm.create_model(..., pretrained=True)`: the same file, the same model.

The weights are random, written as a release to a temporary folder. The features of both must be equal to the
bit before anything is timed; by then the file is in memory and has been compared with its hash. zoo maps the
file, so its pages are read when they are first used: the note has the ratio with every weight read once.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import timm
import torch
from torch import nn

import zoo
from tests.benchmarks.harness import Row, gate, medians, milliseconds
from tests.release_helpers import release_of
from zoo import backbones

TARGETS = {"resnet50": 5, "vit_base_patch16_224": 10, "vit_large_patch16_224": 20}


def rows(device: torch.device) -> Iterator[Row]:
    """Measure three architectures; loading is the host's work."""
    if device.type == "cpu":
        yield from (_measure(arch, target) for arch, target in TARGETS.items())


def _measure(arch: str, target: float) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        release = release_of(Path(folder) / arch, backbones.create(arch), arch, 224)
        loaders: list[Callable[[], nn.Module]] = [
            lambda: zoo.load(release.path),
            lambda: timm.create_model(f"local-dir:{release.path}", pretrained=True, num_classes=0),
        ]
        images = torch.randn(2, 3, 224, 224)
        with torch.no_grad():
            first, second = (load().eval()(images) for load in loaders)
        equal = gate("features", (first - second).abs().max().item(), 0)
        ours, theirs = medians(loaders, warmup=0)
        all_ours, all_theirs = medians([lambda load=load: _read(load()) for load in loaders], warmup=0)
    return Row(
        f"zoo.load {arch}, warm cache",
        "timm",
        theirs / ours,
        target,
        milliseconds(ours),
        milliseconds(theirs),
        equal,
        note=f"with every weight read once {all_theirs / all_ours:.3g}x",
    )


def _read(model: nn.Module) -> float:
    with torch.no_grad():
        return sum(float(tensor.sum()) for tensor in model.state_dict().values())
