"""`zoo.load` against timm's own loading, and against the quickest by hand: the same file, the same model.

By hand is a model on the meta device to which safetensors' mapped weights are assigned. The weights are
random, written as a release to a temporary folder. The features of all must be equal to the bit before
anything is timed; by then the file is in memory and has been compared with its hash. zoo maps the file, so
its pages are read when they are first used: the second row has every weight read once.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file
from torch import nn

import zoo
from tests.benchmarks.harness import Row, gate, timed
from tests.release_helpers import release_of
from zoo import backbones

ARCHITECTURES = ("resnet50", "vit_large_patch16_224")


def rows(device: torch.device) -> Iterator[Row]:
    """Measure two architectures; loading is the host's work."""
    for arch in ARCHITECTURES if device.type == "cpu" else ():
        with tempfile.TemporaryDirectory() as folder:
            path = release_of(Path(folder) / arch, backbones.create(arch), arch, 224).path
            local = f"local-dir:{path}"
            loaders = [
                lambda path=path: zoo.load(path),
                lambda path=path, arch=arch: _by_hand(arch, path / "model.safetensors"),
                lambda local=local: timm.create_model(local, pretrained=True, num_classes=0),
            ]
            images = torch.randn(2, 3, 224, 224)
            with torch.no_grad():
                first, *others = (load().eval()(images) for load in loaders)
            equal = gate("features", max(float((first - each).abs().max()) for each in others), 0)
            name, peers = f"zoo.load {arch}, warm cache", ["meta + load_file + assign", "timm"]
            yield timed(name, peers, loaders, 1.0, equal, device, 7, 0)
            read = [lambda load=load: _read(load()) for load in loaders]
            yield timed(f"{name}, every weight read", peers, read, 1.0, equal, device, 5, 0)


def _by_hand(arch: str, file: Path) -> nn.Module:
    with torch.device("meta"):
        model = timm.create_model(arch, num_classes=0)
    model.load_state_dict(load_file(file), assign=True)
    return model


@torch.no_grad()
def _read(model: nn.Module) -> float:
    return sum(float(tensor.sum()) for tensor in model.state_dict().values())
