"""Checkpoints in the layouts of other projects, made of small modules laid out as their classes are.

Names follow the projects' code (read in their repositories); only what decides keys and features is here.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

import zoo
from zoo import backbones
from zoo.errors import ZooError
from zoo.release import Release

VIT = {"depth": 2, "img_size": 32}  # of timm's ViT-S/16, so that tests are fast
CLASSES = 7


def images() -> Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(5))


OPTIMIZER = {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]}


def save(file: Path, model: nn.Module, **entries: Any) -> Path:
    """As the authors do, under DistributedDataParallel; solo-learn by Lightning's trainer."""
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    if isinstance(model, PiCO):
        state = {key.replace(".downsample.", ".shortcut."): value for key, value in state.items()}
    content = {"epoch": 12, "arch": "resnet", "state_dict": state, **entries}
    if isinstance(model, SoloLearnMoCo):
        loops = {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 4}}}}
        best = {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5), "best_model_path": ""}}
        content = {"epoch": 3, "state_dict": model.state_dict(), "loops": loops, "callbacks": best}
        content["optimizer_states"] = [OPTIMIZER]
    torch.save(content, file)
    return file


def features(release: Release) -> Tensor:
    """What a released encoder makes of `images`."""
    with torch.no_grad():
        return release.load().eval()(images())


def source_features(encoder: Any) -> Tensor:
    """Features by the source's own code."""
    with torch.no_grad():
        if hasattr(encoder, "fc"):
            encoder.fc = nn.Identity()
        return encoder(images()).flatten(1)


def assert_centers(release: Release, linear: Any) -> None:
    """The centers are the source's classifier, and so are the logits of the released one."""
    centers = release.require_centers()
    assert torch.equal(centers.weight, linear.weight)
    assert torch.equal(centers.bias, linear.bias)
    with torch.no_grad():
        assert torch.equal(release.load(head="centers").eval()(images()), linear(features(release)))


def changed(file: Path, target: Path, change: Any) -> Path:
    """Write a file whose `state_dict` is changed by a function."""
    content = torch.load(file)
    change(content["state_dict"])
    torch.save(content, target)
    return target


def refusal(file: Path | str, family: str | None, folder: Path, **options: Any) -> str:
    """The error's one line; nothing is written, and what a file says is no order to a terminal."""
    out = folder / "out"
    with pytest.raises(ZooError) as caught:
        zoo.convert(file, family, out, **options)
    assert not out.exists() and not list(folder.glob(".*"))
    message = str(caught.value)
    assert message.isprintable()
    return message


class MoCo(nn.Module):
    """facebookresearch/moco, moco/builder.py, v2."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_q, self.encoder_k = torchvision.models.resnet18(), torchvision.models.resnet18()
        for encoder in (self.encoder_q, self.encoder_k):
            encoder.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 16))
        self.register_buffer("queue", torch.randn(16, 32))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))


class MoCoV3(nn.Module):
    """facebookresearch/moco-v3, moco/builder.py, with its ViT-S: 12 heads."""

    def __init__(self, vit: bool = True) -> None:
        super().__init__()
        for name in ("base_encoder", "momentum_encoder"):
            encoder: Any = torchvision.models.resnet18()
            encoder.fc = mlp(512, 16, 8)
            if vit:
                encoder = VisionTransformer(32, 16, embed_dim=384, depth=2, num_heads=12, norm_layer=norm)
                encoder.head = mlp(384, 16, 8)
            setattr(self, name, encoder)
        self.predictor = mlp(8, 16, 8)


def mlp(before: int, hidden: int, after: int) -> nn.Sequential:
    last = nn.BatchNorm1d(after, affine=False)
    return nn.Sequential(
        nn.Linear(before, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, after), last
    )


class PaCo(nn.Module):
    """dvlab-research/Parametric-Contrastive-Learning, moco/builder.py of LT; `generalised`: of GPaCo/LT."""

    def __init__(self, generalised: bool = False, classes: int = CLASSES) -> None:
        super().__init__()
        for part in ("q",) if generalised else ("q", "k"):
            encoder: Any = backbones.create("cifar_resnet20")
            encoder.fc = mlp(64, 64, 8)
            setattr(self, f"encoder_{part}", encoder)
            setattr(self, "linear" if part == "q" else "linear_k", nn.Linear(64, classes))
        self.register_buffer("queue", torch.randn(32, 8))
        self.register_buffer("queue_l", torch.zeros(32, dtype=torch.long))


class GPaCoViT(VisionTransformer):
    """GPaCo/MAE-ViTs, models_vit_paco.py: the mean of the patches, normalised by `fc_norm`."""

    def __init__(self) -> None:
        super().__init__(32, 16, 3, CLASSES, embed_dim=384, depth=2, num_heads=6, norm_layer=norm)
        self.fc_norm = norm(384)
        del self.norm
        self.mlp = nn.Sequential(nn.Linear(384, 16), nn.GELU(), nn.Linear(16, 8))
        self.register_buffer("queue", torch.randn(32, 8))

    def forward_features(self, x: Tensor, *_: Any) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.fc_norm(x[:, 1:, :].mean(dim=1))


def norm(width: int, **_: Any) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=1e-6)


class SingleHead(nn.Module):
    """PyContrast and FT, networks/build_backbone.py: RGBSingleHead; their ResNet is torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torchvision.models.resnet18()
        self.encoder.fc = nn.Identity()
        self.head = mlp(512, 16, 8)


class PiCO(nn.Module):
    """hbzju/PiCO, model.py and resnet.py; `save` says `shortcut` for `downsample`."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("encoder_q", "encoder_k"):
            whole: Any = nn.Module()
            whole.encoder = backbones.create("resnet18_cifar")
            whole.fc, whole.head = nn.Linear(512, CLASSES), mlp(512, 16, 8)
            whole.register_buffer("prototypes", torch.zeros(CLASSES, 8))
            setattr(self, name, whole)
        self.register_buffer("queue", torch.randn(32, 8))
        self.register_buffer("queue_pseudo", torch.randn(32))
        self.register_buffer("prototypes", F.normalize(torch.randn(CLASSES, 8)))


class SoloLearnMoCo(nn.Module):
    """vturrisi/solo-learn, methods/base.py and mocov2plus.py, with a CIFAR ResNet-18: padding of 2."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("backbone", "momentum_backbone"):
            backbone = torchvision.models.resnet18()
            backbone.fc = nn.Identity()
            backbone.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=2, bias=False)
            backbone.maxpool = nn.Identity()
            setattr(self, name, backbone)
        self.classifier = nn.Linear(512, CLASSES)
        self.projector, self.momentum_projector = mlp(512, 16, 8), mlp(512, 16, 8)
        self.register_buffer("queue", torch.randn(2, 8, 32))
