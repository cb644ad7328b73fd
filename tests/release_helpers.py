"""Small releases for the tests."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from packaging.version import Version
from timm.layers import RotaryEmbeddingCat
from torch import nn

from zoo import backbones
from zoo.modules.centers import Centers
from zoo.release import Preprocess, Release, write_release

TIMM = Version(timm.__version__)
# timm's "local-dir:" reads no safetensors before 1.0.26, and no folder with two such files before 1.0.29;
# its "hf-hub:" always did.
READS_FOLDERS = Version("1.0.29") <= TIMM
reads_folders = pytest.mark.skipif(not READS_FOLDERS, reason="timm's local-dir loader")

# transformers 5 leaves buffers that no file holds (positions) uninitialised unless timm offers to fill them.
FILLS_BUFFERS = hasattr(RotaryEmbeddingCat, "init_non_persistent_buffers")

CLASSES = 5
RECIPE = "seed: 3\nobjective:\n  name: paco\n"


def plain_timm(folder: Path, **kwargs: Any) -> nn.Module:
    """Return what plain timm makes of a release, in evaluation mode."""
    if READS_FOLDERS:
        return timm.create_model(f"local-dir:{folder}", pretrained=True, **kwargs).eval()
    config = json.loads((folder / "config.json").read_text())
    cfg = {key: config[key] for key in ("num_classes", "label_names") if key in config}
    cfg |= {**config["pretrained_cfg"], "file": str(folder / "model.safetensors")}
    kwargs = {**config["model_args"], **kwargs}
    return timm.create_model(config["architecture"], pretrained=True, pretrained_cfg=cfg, **kwargs).eval()


def randomised(module: nn.Module, seed: int = 0, noise: float = 0.05) -> nn.Module:
    """Give every parameter and statistic a value that no fresh module has."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
        for name, buffer in module.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
            elif name.endswith("running_mean"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
    return module.eval()


def trained_encoder(arch: str = "cifar_resnet20", seed: int = 0, **model_args: Any) -> nn.Module:
    """Return an encoder whose parameters and statistics are those of no fresh model."""
    torch.manual_seed(seed)
    return randomised(backbones.create(arch, **model_args), seed, noise=0.01)


def some_centers(dim: int, classes: int = CLASSES) -> Centers:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(classes, dim, generator=generator)
    return Centers(weight, torch.randn(classes, generator=generator), torch.arange(classes) + 1)


def release_of(
    folder: Path, encoder: nn.Module, arch: str = "cifar_resnet20", size: int = 32, **changes: Any
) -> Release:
    arguments: dict[str, Any] = {
        "name": f"{arch}.paco_test",
        "encoder": encoder,
        "arch": arch,
        "model_args": {},
        "preprocess": Preprocess(size, 0.9, "bilinear", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
        "class_names": [f"class {index}" for index in range(CLASSES)],
        "centers": None,
        "objective": "paco",
        "dataset": {"name": "digits", "images": 1347},
        "recipe_text": RECIPE,
        "metrics": {"training": {"seed": 3, "hardware": "2 CPU cores"}},
    }
    return write_release(folder, **{**arguments, **changes})
