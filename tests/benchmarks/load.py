"""`zoo.load` against `timm.create_model(..., pretrained=True)`: the same file, the same model.

The weights are random, written as a release to a temporary folder. The features of both must be equal to the
bit before anything is timed; by then the file is in memory and has been compared with its hash. zoo maps the
file, so its pages are read when they are first used: the note has the ratio with every weight read once.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import timm
import torch
from torch import nn

import zoo
from tests.benchmarks.harness import Row, gate, medians, timed
from tests.release_helpers import release_of
from zoo import backbones

TARGETS = {"resnet50": 5, "vit_base_patch16_224": 10, "vit_large_patch16_224": 20}


def rows(device: torch.device) -> Iterator[Row]:
    """Measure three architectures; loading is the host's work."""
    for arch, target in TARGETS.items() if device.type == "cpu" else ():
        with tempfile.TemporaryDirectory() as folder:
            path = release_of(Path(folder) / arch, backbones.create(arch), arch, 224).path
            local = f"local-dir:{path}"
            loaders = [
                lambda path=path: zoo.load(path),
                lambda local=local: timm.create_model(local, pretrained=True, num_classes=0),
            ]
            images = torch.randn(2, 3, 224, 224)
            with torch.no_grad():
                first, second = (load().eval()(images) for load in loaders)
            equal = gate("features", (first - second).abs().max().item(), 0)
            ours, theirs = medians([lambda load=load: _read(load()) for load in loaders], device, warmup=0)
            note = f"with every weight read once {theirs / ours:.3g}x"
            yield timed(
                f"zoo.load {arch}, warm cache", "timm", loaders, target, equal, device, 9, 0, note=note
            )


@torch.no_grad()
def _read(model: nn.Module) -> float:
    return sum(float(tensor.sum()) for tensor in model.state_dict().values())
