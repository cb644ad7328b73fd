"""Every family's layout, converted: the features are the source's, bit for bit, and so are the centers."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from timm.layers import build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import zoo
from tests import convert_helpers as made
from zoo.conversion import FAMILIES

VIT_SMALL = "vit_small_patch16_224"
VIT = {"model_args": made.VIT, "size": 32}
LARGE = {"size": 64}  # torchvision's ResNets on small images, so that tests are fast


class Case(NamedTuple):
    """A layout: whose, made of which module, and where in that its parts are."""

    family: str
    make: Callable[[], nn.Module]
    arch: str
    query: str
    momentum: str | None = None
    centers: str | None = None
    momentum_centers: str | None = None
    options: dict[str, Any] = LARGE


def notebook() -> nn.Module:
    """facebookresearch/moco, colab/moco_cifar10_demo.ipynb."""
    model: Any = nn.Module()
    model.encoder_q, model.encoder_k = made.NotebookEncoder(), made.NotebookEncoder()
    return model


CASES = {
    "moco v1": Case("moco", lambda: made.MoCo(mlp=False), "resnet18", "encoder_q", "encoder_k"),
    "moco v2": Case("moco", made.MoCo, "resnet18", "encoder_q", "encoder_k"),
    "moco notebook": Case("moco", notebook, "resnet18_cifar", "encoder_q.net", "encoder_k.net", options={}),
    "moco v3": Case(
        "moco-v3", lambda: made.MoCoV3(vit=False), "resnet18", "base_encoder", "momentum_encoder"
    ),
    "moco v3 vit": Case("moco-v3", made.MoCoV3, VIT_SMALL, "base_encoder", "momentum_encoder", options=VIT),
    "paco": Case(
        *("paco", made.PaCo, "cifar_resnet20", "encoder_q", "encoder_k", "linear", "linear_k"), options={}
    ),
    "gpaco": Case(
        *("gpaco", lambda: made.PaCo(generalised=True), "cifar_resnet20", "encoder_q", None, "linear"),
        options={},
    ),
    "pico": Case(
        *("pico", made.PiCO, "resnet18_cifar", "encoder_q.encoder", "encoder_k.encoder", "encoder_q.fc"),
        "encoder_k.fc",
        options={},
    ),
    "solo-learn": Case(  # the online classifier was trained on the query encoder
        *("solo-learn", made.SoloLearnMoCo, "resnet18_cifar", "backbone", "momentum_backbone", "classifier"),
        options={},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_both_encoders_and_their_centers(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    model: Any = made.randomised(case.make())
    save = made.save_lightning if case.family == "solo-learn" else made.save
    file = save(tmp_path / "last.pth.tar", model)
    for encoder, where, linear in (
        ("query", case.query, case.centers),
        ("momentum", case.momentum, case.momentum_centers),
    ):
        if where is None:
            continue
        release = zoo.convert(
            file, case.family, tmp_path / encoder, arch=case.arch, encoder=encoder, **case.options
        )
        source = model.get_submodule(where)
        if name == "moco notebook":
            source = source[:-2]
        elif name == "moco v3 vit":
            source.head = nn.Identity()
        assert torch.equal(made.features(release), made.source_features(source))
        if linear is None:
            assert release.centers is None and release.class_names == ()
        else:
            made.assert_centers(release, model.get_submodule(linear))
            assert set(release.require_centers().class_counts.tolist()) == {-1}
            assert release.class_names == tuple("0123456")
        if name == "pico":
            assert torch.equal(release.require_centers().prototypes, model.prototypes)


def test_moco_v3_vit_s_has_twelve_heads_where_others_have_six(tmp_path: Path) -> None:
    file = made.save(tmp_path / "vit-s-300ep.pth.tar", made.randomised(made.MoCoV3()))
    release = zoo.convert(file, "moco-v3", tmp_path / "out", arch=VIT_SMALL, **VIT)
    assert release.config["model_args"]["num_heads"] == 12
    six = {**VIT, "model_args": {**made.VIT, "num_heads": 6}}
    other = zoo.convert(file, "moco-v3", tmp_path / "six", arch=VIT_SMALL, **six)
    assert not torch.allclose(made.features(other), made.features(release), atol=1e-2)


def test_gpaco_vit_pools_the_patches(tmp_path: Path) -> None:
    model: Any = made.randomised(made.GPaCoViT())
    torch.save({"model": model.state_dict(), "epoch": 99, "scaler": {}, "optimizer": {}}, tmp_path / "c.pth")
    release = zoo.convert(tmp_path / "c.pth", "gpaco", tmp_path / "out", arch=VIT_SMALL, **VIT)
    with torch.no_grad():
        assert torch.equal(made.features(release), model.forward_features(made.images()))
    made.assert_centers(release, model.head)


def test_ft_has_its_average_in_an_entry_of_its_own(tmp_path: Path) -> None:
    model, model_ema = made.randomised(made.SingleHead()), made.randomised(made.SingleHead(), seed=1)
    file = made.save_ft(tmp_path / "ckpt_epoch_200.pth", model, model_ema)
    release = zoo.convert(file, "ft", tmp_path / "out", arch="resnet18", size=64)
    assert torch.equal(made.features(release), made.source_features(model.encoder))
    assert release.recipe["converted"]["epoch"] == 200
    assert release.recipe["objective"] == {"name": "moco", "feature_transform": True}
    content = torch.load(file)  # as others wrap it
    content["model"] = {
        key.replace("module.encoder.", "encoder.module."): each for key, each in content["model"].items()
    }
    torch.save(content, file)
    momentum = zoo.convert(file, "ft", tmp_path / "ema", arch="resnet18", encoder="momentum", size=64)
    assert torch.equal(made.features(momentum), made.source_features(model_ema.encoder))


@pytest.mark.parametrize("fixed", [True, False], ids=["moco-v3", "other"])
def test_solo_learn_vit_of_moco_v3_has_twelve_heads_and_the_others_six(tmp_path: Path, fixed: bool) -> None:
    model: Any = nn.Module()
    heads = {"embed_dim": 384, "num_heads": 12 if fixed else 6, "norm_layer": made.norm, "num_classes": 0}
    model.backbone = VisionTransformer(patch_size=16, **heads, **made.VIT)
    made.randomised(model)
    if fixed:
        positions = build_sincos2d_pos_embed([2, 2], 384, interleave_sin_cos=True)[None]
        model.backbone.pos_embed = nn.Parameter(torch.cat([torch.zeros(1, 1, 384), positions], dim=1))
    file = made.save_lightning(tmp_path / "mocov3.ckpt", model)
    release = zoo.convert(file, "solo-learn", tmp_path / "out", arch=VIT_SMALL, license="mit", **VIT)
    assert torch.equal(made.features(release), made.source_features(model.backbone))
    assert release.config["pretrained_cfg"]["license"] == "mit"


@pytest.fixture
def lightly() -> Any:
    os.environ["LIGHTLY_DID_VERSION_CHECK"] = "True"  # importing it asks a server otherwise
    return pytest.importorskip("lightly")


def lightly_moco(backbone: nn.Module, names: tuple[str, str]) -> Any:
    """The MoCo of lightly, its trained and its momentum copy under `names`, with the online classifier."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import MoCoProjectionHead
    from lightly.utils.benchmarking import OnlineLinearClassifier

    model: Any = nn.Module()
    model.projection_head = MoCoProjectionHead(512, 16, 8)
    for name in names:
        setattr(model, name, copy.deepcopy(backbone))
    model.criterion = NTXentLoss(memory_bank_size=(32, 8))
    model.online_classifier = OnlineLinearClassifier(feature_dim=512, num_classes=made.CLASSES)
    return made.randomised(model)


@pytest.mark.parametrize("names", [("backbone", "backbone_momentum"), ("query_backbone", "backbone")])
def test_lightly_names_the_trained_copy_otherwise_in_its_benchmarks(
    tmp_path: Path, lightly: Any, names: tuple[str, str]
) -> None:
    model = lightly_moco(nn.Sequential(*list(torchvision.models.resnet18().children())[:-1]), names)
    file = made.save_lightning(tmp_path / "epoch=3-step=400.ckpt", model)
    for encoder, name in zip(("query", "momentum"), names, strict=True):
        release = zoo.convert(file, "lightly", tmp_path / name, arch="resnet18", encoder=encoder, size=64)
        assert torch.equal(made.features(release), made.source_features(getattr(model, name)))
        if name == "backbone":  # on which the online classifier is trained
            made.assert_centers(release, model.online_classifier.classification_head)
        else:
            assert release.centers is None


@pytest.mark.parametrize("num_splits", [0, 4], ids=["BatchNorm", "SplitBatchNorm"])
def test_lightly_sequential_of_its_own_resnet_has_no_relu_after_the_stem(
    tmp_path: Path, lightly: Any, num_splits: int
) -> None:
    from lightly.models import ResNetGenerator

    resnet = ResNetGenerator("resnet-18", num_splits=num_splits)
    backbone = nn.Sequential(*list(resnet.children())[:-1], nn.AdaptiveAvgPool2d(1))
    model = lightly_moco(backbone, ("backbone", "backbone_momentum"))
    model.backbone.train()  # as during training: every group has statistics of its own
    for name, buffer in model.backbone.named_buffers():
        if "running" in name:
            buffer.add_(torch.rand(buffer.shape))
    file = made.save_lightning(tmp_path / "last.ckpt", model)
    release = zoo.convert(file, "lightly", tmp_path / "out", arch="resnet18_cifar")
    assert torch.equal(made.features(release), made.source_features(model.eval().backbone))
    assert release.config["model_args"] == {"stem_act": False}


@pytest.mark.parametrize("how", ["old", "safetensors by another name", "tutorial"])
def test_formats_of_files(tmp_path: Path, how: str) -> None:
    model: Any = made.randomised(made.MoCo())
    file, family = tmp_path / "f.bin", "moco"
    if how.startswith("safetensors"):
        save_file(model.state_dict(), file)
    elif how == "tutorial":  # lightly's: `nn.Sequential(*list(resnet.children())[:-1])`
        children = nn.Sequential(*list(model.encoder_q.children())[:-1])
        torch.save({"resnet18_parameters": children.state_dict()}, file)
        family = "lightly"
    else:
        torch.save({"state_dict": model.state_dict()}, file, _use_new_zipfile_serialization=False)
    release = zoo.convert(file, family, tmp_path / "out", arch="resnet18", size=64)
    assert torch.equal(made.features(release), made.source_features(model.encoder_q))


def _paco_of(classes: int) -> nn.Module:
    model: Any = made.MoCo()
    model.linear, model.linear_k = nn.Linear(512, classes), nn.Linear(512, classes)
    return model


CIFAR, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
IMAGENET, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
INATURALIST, INATURALIST_STD = (0.466, 0.471, 0.38), (0.195, 0.194, 0.192)


@pytest.mark.parametrize(
    ("family", "make", "arch", "expected"),
    [
        ("moco-v3", lambda: made.MoCoV3(vit=False), "resnet18", (224, 0.875, IMAGENET, IMAGENET_STD)),
        ("pico", made.PiCO, None, (32, 1.0, CIFAR, CIFAR_STD)),
        ("paco", lambda: _paco_of(8142), "resnet18", (224, 0.875, INATURALIST, INATURALIST_STD)),
    ],
    ids=["ImageNet", "CIFAR-10", "iNaturalist"],
)
def test_preprocessing_is_the_authors_own(
    tmp_path: Path, family: str, make: Any, arch: str | None, expected: tuple[Any, ...]
) -> None:
    file = made.save(tmp_path / "f.pth", made.randomised(make()), arch=None)
    found = zoo.convert(file, family, tmp_path / "out", arch=arch).preprocess
    assert (found.input_size, found.crop_pct, found.mean, found.std) == expected
    assert found.interpolation == "bilinear"


def test_every_named_architecture_exists() -> None:
    named = {arch for family in FAMILIES.values() for arch in family.architectures}
    assert [arch for arch in named if not timm.is_model(arch)] == []
