"""Small encoders and data for the tests of `zoo.evaluation`."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn

from zoo import backbones
from zoo.config import parse
from zoo.data import DataConfig, EvalView, ImageDataset, open_dataset
from zoo.evaluation.encode import Encoder
from zoo.evaluation.light import parse_protocol
from zoo.evaluation.measure import ProbeData, measure
from zoo.evaluation.published import ProbeRun
from zoo.release import Preprocess
from zoo.training import RunFolder

MEAN, STD = [0.3, 0.3, 0.3], [0.4, 0.4, 0.4]
DATA = parse(DataConfig, {"source": {"kind": "digits"}}, "test")
VIEW = EvalView(size=8, crop_pct=1.0, interpolation="bilinear")


class Digits(NamedTuple):
    """What protocols see of digits, and the test images with their labels."""

    probe: ProbeData
    test_set: ImageDataset


def encoder() -> nn.Module:
    """A random encoder whose BatchNorm has seen data, so that its statistics matter."""
    torch.manual_seed(0)
    model = backbones.create("cifar_resnet20")
    model.train()(torch.randn(64, 3, 8, 8))
    model.layer1[0].bn1.eval()  # a mode and a flag that somebody set must come back
    model.conv1.weight.requires_grad_(False)
    return model


def digits(model: nn.Module | None = None, every: int = 3, tested: ImageDataset | None = None) -> Digits:
    """Digits under an encoder, by default as pixels; of the training images one of so many."""
    train_set, test_set = (open_dataset(DATA, split, None) for split in ("train", "test"))
    test_set = test_set if tested is None else tested
    how = Encoder(model or nn.Flatten(), Preprocess(8, 1.0, "bilinear", tuple(MEAN), tuple(STD)))
    return Digits(ProbeData(how, train_set.subset(range(0, 1250, every)), test_set), test_set)


def entry_of(name: str, data: Digits, run: Path | None = None, **settings: Any) -> dict[str, Any]:
    """Measure by a protocol with some settings."""
    state = None if run is None else ProbeRun(DATA, run, exact=True)
    return measure(parse_protocol(name, settings), *data, None, state)


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the objective's tensors in a run's newest checkpoint."""
    checkpoint = RunFolder(folder).load()
    assert checkpoint is not None
    return checkpoint.state["objective"]


def folders(root: Path, **counts: tuple[int, int]) -> str:
    """Make images of classes, so many for training and test each; return the data spec."""
    generator = np.random.default_rng(0)
    for name, pair in counts.items():
        for split, count in zip(("train", "val"), pair, strict=True):
            for i in range(count):
                folder = root / split / name
                folder.mkdir(parents=True, exist_ok=True)
                pixels = generator.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return f"folder:{root}"
