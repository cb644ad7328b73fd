"""Every family's layout, converted: the features are the source's, bit for bit, and so are the centers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from timm.layers import build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import zoo
from tests import convert_helpers as made
from zoo.release import Release

VIT_SMALL = "vit_small_patch16_224"


def converted(file: Path, family: str, out: Path, arch: str, **options: Any) -> Release:
    release = zoo.convert(file, family, out, arch=arch, **options)
    assert zoo.open(out).config == release.config
    return release


def features(release: Release, size: int = 32) -> Tensor:
    with torch.no_grad():
        return release.load().eval()(made.images(size))


def source(encoder: Any, size: int = 32) -> Tensor:
    """Features by the source's own code."""
    x = made.images(size)
    with torch.no_grad():
        if isinstance(encoder, made.ResNetS):
            return encoder.features(x)
        if isinstance(encoder, torchvision.models.ResNet):
            return made.torchvision_features(encoder, x)
        return encoder(x).flatten(1)


def assert_centers(release: Release, linear: Any) -> None:
    """The centers are the source's classifier, and so are the logits of the released one."""
    centers = release.centers
    assert centers is not None
    assert torch.equal(centers.weight, linear.weight)
    assert torch.equal(centers.bias, linear.bias)
    with torch.no_grad():
        found = release.load(head="centers").eval()(made.images())
        assert torch.equal(found, linear(features(release)))


@pytest.mark.parametrize("mlp", [False, True], ids=["v1", "v2"])
def test_moco(tmp_path: Path, mlp: bool) -> None:
    model: Any = made.randomised(made.MoCo(mlp=mlp))
    file = made.save(tmp_path / "moco_v2_200ep.pth.tar", model, optimizer=made.optimizer_state(model))
    release = converted(file, "moco", tmp_path / "out", "resnet18", size=64)
    assert torch.equal(features(release), source(model.encoder_q))
    assert release.name == "resnet18.moco_v2_200ep"
    assert release.centers is None
    assert release.class_names == ()
    momentum = converted(file, "moco", tmp_path / "key", "resnet18", encoder="momentum", size=64)
    assert torch.equal(features(momentum), source(model.encoder_k))
    assert not torch.equal(features(momentum), features(release))


def test_moco_of_the_cifar_notebook(tmp_path: Path) -> None:
    model: Any = nn.Module()
    model.encoder_q, model.encoder_k = made.NotebookEncoder(), made.NotebookEncoder()
    made.randomised(model)
    torch.save({"epoch": 5, "state_dict": model.state_dict()}, tmp_path / "last.pth")
    release = converted(tmp_path / "last.pth", "moco", tmp_path / "out", "resnet18_cifar")
    assert torch.equal(features(release), source(model.encoder_q.net[:-2]))


def test_moco_v3_vit_has_twelve_heads(tmp_path: Path) -> None:
    model: Any = made.randomised(made.MoCoV3())
    file = made.save(tmp_path / "vit-s-300ep.pth.tar", model, scaler={"scale": 65536.0})
    options = {"model_args": made.VIT, "size": 32}
    release = converted(file, "moco-v3", tmp_path / "out", VIT_SMALL, **options)
    model.base_encoder.head = nn.Identity()
    assert torch.equal(features(release), source(model.base_encoder))
    assert release.config["model_args"]["num_heads"] == 12
    model.momentum_encoder.head = nn.Identity()
    momentum = converted(file, "moco-v3", tmp_path / "m", VIT_SMALL, encoder="momentum", **options)
    assert torch.equal(features(momentum), source(model.momentum_encoder))
    six = converted(
        file, "moco-v3", tmp_path / "six", VIT_SMALL, model_args={**made.VIT, "num_heads": 6}, size=32
    )
    assert not torch.allclose(features(six), features(release), atol=1e-2)  # what the 12 are known for


def test_moco_v3_resnet(tmp_path: Path) -> None:
    model: Any = made.randomised(made.MoCoV3(vit=False))
    file = made.save(tmp_path / "r-18.pth.tar", model)
    release = converted(file, "moco-v3", tmp_path / "out", "resnet18")
    assert torch.equal(features(release), source(model.base_encoder))
    assert release.preprocess == zoo.release.Preprocess(
        224, 0.875, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    )


def test_paco(tmp_path: Path) -> None:
    model: Any = made.randomised(made.PaCo())
    file = made.save(tmp_path / "moco_ckpt.pth.tar", model, optimizer=made.optimizer_state(model))
    counts = [500, 200, 100, 50, 20, 10, 5]
    release = converted(file, "paco", tmp_path / "out", "cifar_resnet20", class_counts=counts)
    assert torch.equal(features(release), source(model.encoder_q))
    assert_centers(release, model.linear)
    assert release.centers is not None
    assert release.centers.class_counts.tolist() == counts
    assert release.class_names == tuple("0123456")
    momentum = converted(file, "paco", tmp_path / "k", "cifar_resnet20", encoder="momentum")
    assert torch.equal(features(momentum), source(model.encoder_k))
    assert_centers(momentum, model.linear_k)
    assert momentum.centers is not None
    assert set(momentum.centers.class_counts.tolist()) == {-1}
    assert "not known" in momentum.config["zoo"]["description"]


def test_gpaco(tmp_path: Path) -> None:
    model: Any = made.randomised(made.PaCo(generalised=True))
    release = converted(made.save(tmp_path / "c.pth.tar", model), "gpaco", tmp_path / "out", "cifar_resnet20")
    assert torch.equal(features(release), source(model.encoder_q))
    assert_centers(release, model.linear)


def test_gpaco_vit_pools_the_patches(tmp_path: Path) -> None:
    model: Any = made.randomised(made.GPaCoViT())
    torch.save({"model": model.state_dict(), "epoch": 99, "scaler": {}, "optimizer": {}}, tmp_path / "c.pth")
    options = {"model_args": made.VIT, "size": 32}
    release = converted(tmp_path / "c.pth", "gpaco", tmp_path / "out", VIT_SMALL, **options)
    with torch.no_grad():
        expected = model.forward_features(made.images())
    assert torch.equal(features(release), expected)
    assert_centers(release, model.head)


@pytest.mark.parametrize("wrapped", ["module.encoder", "encoder.module"])
def test_ft(tmp_path: Path, wrapped: str) -> None:
    model, model_ema = made.randomised(made.SingleHead()), made.randomised(made.SingleHead(), seed=1)
    file = made.save_ft(tmp_path / "ckpt_epoch_200.pth", model, model_ema)
    if wrapped == "encoder.module":
        content = torch.load(file)
        content["model"] = {
            key.replace("module.encoder.", "encoder.module."): value
            for key, value in content["model"].items()
        }
        torch.save(content, file)
    release = converted(file, "ft", tmp_path / "out", "resnet18", size=64)
    assert torch.equal(features(release), source(model.encoder))
    assert release.recipe["converted"]["epoch"] == 200
    assert "zhu2021" in release.card  # FT's paper is cited, and MoCo's
    momentum = converted(file, "ft", tmp_path / "ema", "resnet18", encoder="momentum", size=64)
    assert torch.equal(features(momentum), source(model_ema.encoder))


def test_pico(tmp_path: Path) -> None:
    model: Any = made.randomised(made.PiCO())
    file = made.save(tmp_path / "checkpoint_best.pth.tar", model, optimizer=made.optimizer_state(model))
    release = converted(file, "pico", tmp_path / "out", "resnet18_cifar")
    assert torch.equal(features(release), source(model.encoder_q.encoder))
    assert_centers(release, model.encoder_q.fc)
    assert release.centers is not None
    assert release.centers.prototypes is not None
    assert torch.equal(release.centers.prototypes, model.prototypes)
    assert release.preprocess.std == (0.247, 0.243, 0.261)


def test_solo_learn_cifar_resnet_keeps_its_padding_of_two(tmp_path: Path) -> None:
    model: Any = made.randomised(made.SoloLearnMoCo())
    file = made.save_lightning(tmp_path / "mocov2plus-cifar10-ep=999.ckpt", model)
    release = converted(file, "solo-learn", tmp_path / "out", "resnet18_cifar")
    assert torch.equal(features(release), source(model.backbone))
    assert_centers(release, model.classifier)
    momentum = converted(file, "solo-learn", tmp_path / "m", "resnet18_cifar", encoder="momentum")
    assert torch.equal(features(momentum), source(model.momentum_backbone))
    assert momentum.centers is None  # the online classifier was trained on the other encoder


def test_solo_learn_before_1_0_4_names_the_backbone_encoder(tmp_path: Path) -> None:
    model: Any = made.randomised(made.SoloLearnMoCo())
    state = {key.replace("backbone.", "encoder."): value for key, value in model.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "old.ckpt")
    release = converted(tmp_path / "old.ckpt", "solo-learn", tmp_path / "out", "resnet18_cifar")
    assert torch.equal(features(release), source(model.backbone))


@pytest.mark.parametrize("fixed", [True, False], ids=["moco-v3", "other"])
def test_solo_learn_vit_of_moco_v3_has_twelve_heads_and_the_others_six(tmp_path: Path, fixed: bool) -> None:
    model: Any = nn.Module()
    model.backbone = VisionTransformer(
        patch_size=16,
        embed_dim=384,
        num_heads=12 if fixed else 6,
        norm_layer=made.norm,
        num_classes=0,
        **made.VIT,
    )
    made.randomised(model)
    if fixed:
        positions = build_sincos2d_pos_embed([2, 2], 384, interleave_sin_cos=True)[None]
        model.backbone.pos_embed = nn.Parameter(torch.cat([torch.zeros(1, 1, 384), positions], dim=1))
    file = made.save_lightning(tmp_path / "mocov3.ckpt", model)
    release = converted(
        file, "solo-learn", tmp_path / "out", VIT_SMALL, model_args=made.VIT, size=32, license="mit"
    )
    assert torch.equal(features(release), source(model.backbone))
    assert release.config["pretrained_cfg"]["license"] == "mit"


@pytest.fixture
def lightly() -> Any:
    os.environ["LIGHTLY_DID_VERSION_CHECK"] = "True"  # importing it asks a server otherwise
    return pytest.importorskip("lightly")


def lightly_moco(backbone: nn.Module, dim: int) -> Any:
    """The MoCo of lightly's examples, with its benchmarks' online classifier."""
    import copy

    from lightly.loss import NTXentLoss
    from lightly.models.modules import MoCoProjectionHead
    from lightly.utils.benchmarking import OnlineLinearClassifier

    model: Any = nn.Module()
    model.backbone = backbone
    model.projection_head = MoCoProjectionHead(dim, 16, 8)
    model.backbone_momentum = copy.deepcopy(backbone)
    model.projection_head_momentum = copy.deepcopy(model.projection_head)
    model.criterion = NTXentLoss(memory_bank_size=(32, 8))
    model.online_classifier = OnlineLinearClassifier(feature_dim=dim, num_classes=made.CLASSES)
    return made.randomised(model)


def test_lightly_sequential_of_torchvision(tmp_path: Path, lightly: Any) -> None:
    resnet = torchvision.models.resnet18()
    model = lightly_moco(nn.Sequential(*list(resnet.children())[:-1]), 512)
    file = made.save_lightning(tmp_path / "epoch=3-step=400.ckpt", model)
    release = converted(file, "lightly", tmp_path / "out", "resnet18", size=64)
    assert torch.equal(features(release), source(model.backbone))
    assert_centers(release, model.online_classifier.classification_head)
    momentum = converted(file, "lightly", tmp_path / "m", "resnet18", encoder="momentum", size=64)
    assert torch.equal(features(momentum), source(model.backbone_momentum))
    assert momentum.centers is None


@pytest.mark.parametrize("num_splits", [0, 4], ids=["BatchNorm", "SplitBatchNorm"])
def test_lightly_sequential_of_its_own_resnet_has_no_relu_after_the_stem(
    tmp_path: Path, lightly: Any, num_splits: int
) -> None:
    from lightly.models import ResNetGenerator

    resnet = ResNetGenerator("resnet-18", num_splits=num_splits)
    backbone = nn.Sequential(*list(resnet.children())[:-1], nn.AdaptiveAvgPool2d(1))
    model = lightly_moco(backbone, 512)
    model.backbone.train()  # as during training: every group has statistics of its own
    for name, buffer in model.backbone.named_buffers():
        if "running" in name:
            buffer.add_(torch.rand(buffer.shape))
    file = made.save_lightning(tmp_path / "last.ckpt", model)
    release = converted(file, "lightly", tmp_path / "out", "resnet18_cifar")
    model.eval()
    found, expected = features(release), source(model.backbone)
    assert torch.equal(found, expected)
    assert release.config["model_args"] == {"stem_act": False}


def test_lightly_benchmarks_name_the_momentum_encoder_backbone(tmp_path: Path, lightly: Any) -> None:
    import copy

    from lightly.models.modules import MoCoProjectionHead
    from lightly.utils.benchmarking import OnlineLinearClassifier

    model: Any = nn.Module()
    model.backbone = torchvision.models.resnet18()
    model.backbone.fc = nn.Identity()
    model.projection_head = MoCoProjectionHead(512, 16, 8)
    model.query_backbone = copy.deepcopy(model.backbone)
    model.query_projection_head = copy.deepcopy(model.projection_head)
    model.online_classifier = OnlineLinearClassifier(feature_dim=512, num_classes=made.CLASSES)
    made.randomised(model)
    file = made.save_lightning(tmp_path / "mocov2.ckpt", model)
    release = converted(file, "lightly", tmp_path / "out", "resnet18", size=64)
    assert torch.equal(features(release), source(model.query_backbone))
    assert release.centers is None
    momentum = converted(file, "lightly", tmp_path / "m", "resnet18", encoder="momentum", size=64)
    assert torch.equal(features(momentum), source(model.backbone))
    assert_centers(momentum, model.online_classifier.classification_head)


def test_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model: Any = made.randomised(made.MoCo())
    save_file(model.state_dict(), tmp_path / "moco.safetensors")
    release = converted(tmp_path / "moco.safetensors", "moco", tmp_path / "out", "resnet18", size=64)
    assert torch.equal(features(release), source(model.encoder_q))
    assert release.recipe["converted"]["epoch"] is None


def test_a_file_of_old_torch_which_cannot_be_mapped(tmp_path: Path) -> None:
    model: Any = made.randomised(made.MoCo())
    content = {"epoch": 200, "state_dict": model.state_dict()}
    torch.save(content, tmp_path / "old.pth.tar", _use_new_zipfile_serialization=False)
    release = converted(tmp_path / "old.pth.tar", "moco", tmp_path / "out", "resnet18", size=64)
    assert torch.equal(features(release), source(model.encoder_q))


def test_a_vit_for_cifar_has_the_preprocessing_of_cifar(tmp_path: Path) -> None:
    """solo-learn, data/classification_dataloader.py: CIFAR images are neither resized nor cropped."""
    model: Any = nn.Module()
    args = {"img_size": 32, "patch_size": 8, "depth": 1}
    model.backbone = VisionTransformer(
        embed_dim=192, num_heads=3, norm_layer=made.norm, num_classes=0, **args
    )
    file = made.save_lightning(tmp_path / "dino.ckpt", made.randomised(model))
    release = converted(file, "solo-learn", tmp_path / "out", "vit_tiny_patch16_224", model_args=args)
    assert release.preprocess == zoo.release.Preprocess(
        32, 1.0, "bilinear", (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
    )


def test_lightly_normalises_cifar_as_imagenet(tmp_path: Path) -> None:
    """lightly, docs/source/getting_started/benchmarks/cifar10_benchmark.py: test_transforms."""
    model: Any = nn.Module()
    model.backbone = made.ResNetS(blocks=2, wide=True)
    file = made.save_lightning(tmp_path / "simclr.ckpt", made.randomised(model))
    release = converted(file, "lightly", tmp_path / "out", "resnet18_cifar")
    assert release.preprocess == zoo.release.Preprocess(
        32, 1.0, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    )


@pytest.mark.parametrize(
    ("classes", "expected"),
    [(10, (0.4914, 0.4822, 0.4465)), (100, (0.5071, 0.4867, 0.4408))],
    ids=["CIFAR-10", "CIFAR-100"],
)
def test_pico_normalises_cifar100_by_its_own_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int, expected: tuple[float, ...]
) -> None:
    """hbzju/PiCO, utils/cifar10.py and cifar100.py."""
    monkeypatch.setattr(made, "CLASSES", classes)
    file = made.save(tmp_path / "c.pth.tar", made.randomised(made.PiCO()))
    assert converted(file, "pico", tmp_path / "out", "resnet18_cifar").preprocess.mean == expected


def test_paco_normalises_inaturalist_by_its_own_statistics(tmp_path: Path) -> None:
    """dvlab-research/Parametric-Contrastive-Learning, LT/paco_lt.py: `normalize` of `val_transform`."""
    model: Any = made.MoCo()
    model.linear, model.linear_k = nn.Linear(512, 8142), nn.Linear(512, 8142)
    file = made.save(tmp_path / "inat_r50.pth.tar", made.randomised(model))
    release = converted(file, "paco", tmp_path / "out", "resnet18", size=64)
    assert release.preprocess.mean == (0.466, 0.471, 0.38)
    assert release.preprocess.std == (0.195, 0.194, 0.192)


def test_safetensors_are_known_by_their_content(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model: Any = made.randomised(made.MoCo())
    save_file(model.state_dict(), tmp_path / "moco.bin")
    release = converted(tmp_path / "moco.bin", "moco", tmp_path / "out", "resnet18", size=64)
    assert torch.equal(features(release), source(model.encoder_q))
