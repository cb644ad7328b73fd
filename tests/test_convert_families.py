"""Every family's layout, converted: the features are the source's, bit for bit, and so are the centers."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import zoo
from tests import convert_helpers as made
from tests.release_helpers import randomised
from zoo.convert.families import FAMILIES

VIT_SMALL, PACO, CIFAR = "vit_small_patch16_224", "cifar_resnet20", "resnet18_cifar"
VIT = {"model_args": made.VIT, "preprocess": {"input_size": 32}}
LARGE = {"preprocess": {"input_size": 64}}  # torchvision's ResNets on small images, so that tests are fast


V3 = ("base_encoder", "momentum_encoder", None, None)
BOTH, SOLO = ("encoder_q", "encoder_k"), ("backbone", "momentum_backbone")
CASES: dict[str, tuple[Any, ...]] = {
    # family, module, architecture, where its query and momentum encoder are, and their classifiers
    "moco": ("moco", made.MoCo, "resnet18", *BOTH, None, None, LARGE),
    "moco v3": ("moco-v3", lambda: made.MoCoV3(vit=False), "resnet18", *V3, LARGE),
    "moco v3 vit": ("moco-v3", made.MoCoV3, VIT_SMALL, *V3, VIT),
    "paco": ("paco", made.PaCo, PACO, *BOTH, "linear", "linear_k", {}),
    "gpaco": ("gpaco", lambda: made.PaCo(generalised=True), PACO, "encoder_q", None, "linear", None, {}),
    "pico": ("pico", made.PiCO, CIFAR, *(f"{e}.encoder" for e in BOTH), *(f"{e}.fc" for e in BOTH), {}),
    # the online classifier was trained on the query encoder
    "solo": (
        "solo-learn",
        made.SoloLearnMoCo,
        CIFAR,
        "backbone",
        "momentum_backbone",
        "classifier",
        None,
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_both_encoders_and_their_centers(tmp_path: Path, name: str) -> None:
    family, make, arch, query, momentum, centers, momentum_centers, options = CASES[name]
    model: Any = randomised(make())
    file = made.save(tmp_path / "last.pth.tar", model)
    for encoder, where, linear in (("query", query, centers), ("momentum", momentum, momentum_centers)):
        if where is None:
            continue
        release = zoo.convert(file, family, tmp_path / encoder, arch=arch, encoder=encoder, **options)
        source = model.get_submodule(where)
        if name == "moco v3 vit":  # ViT-S has twelve heads here, where others have six
            source.head = nn.Identity()
            assert release.config["model_args"]["num_heads"] == 12
        assert torch.equal(made.features(release), made.source_features(source))
        assert release.name == f"{arch}.{family.replace('-', '_')}_last"
        assert release.config["pretrained_cfg"]["license"] == FAMILIES[family].license
        if linear is None:
            assert release.centers is None and release.class_names == ()
        else:
            made.assert_centers(release, model.get_submodule(linear))
            assert set(release.require_centers().class_counts.tolist()) == {-1}
            assert release.class_names == tuple("0123456")
        if name == "pico":
            assert torch.equal(release.require_centers().prototypes, model.prototypes)


def test_gpaco_vit_pools_the_patches(tmp_path: Path) -> None:
    model: Any = randomised(made.GPaCoViT())
    torch.save({"model": model.state_dict(), "epoch": 99, "scaler": {}, "optimizer": {}}, tmp_path / "c.pth")
    release = zoo.convert(tmp_path / "c.pth", "gpaco", tmp_path / "out", arch=VIT_SMALL, **VIT)
    with torch.no_grad():
        assert torch.equal(made.features(release), model.forward_features(made.images()))
    made.assert_centers(release, model.head)


def test_ft_has_its_average_in_an_entry_of_its_own(tmp_path: Path) -> None:
    model, model_ema = randomised(made.SingleHead()), randomised(made.SingleHead(), seed=1)
    state: dict[str, Any] = {"epoch": 200, "optimizer": made.OPTIMIZER, "contrast": {"memory": torch.ones(8)}}
    state["model"] = {f"module.{key}": value for key, value in model.state_dict().items()}
    file = tmp_path / "ckpt_epoch_200.pth"
    torch.save({**state, "model_ema": model_ema.state_dict()}, file)  # only the trained model is wrapped
    release = zoo.convert(file, "ft", tmp_path / "out", arch="resnet18", preprocess={"input_size": 64})
    assert torch.equal(made.features(release), made.source_features(model.encoder))
    assert release.recipe["objective"] == {"name": "moco", "feature_transform": True}
    momentum = zoo.convert(
        file, "ft", tmp_path / "ema", arch="resnet18", encoder="momentum", preprocess={"input_size": 64}
    )
    assert torch.equal(made.features(momentum), made.source_features(model_ema.encoder))


@pytest.mark.parametrize("how", ["old", "safetensors by another name", "wrapped inside"])
def test_formats_of_files(tmp_path: Path, how: str) -> None:
    model: Any = randomised(made.MoCo())
    file, state = tmp_path / "f.bin", model.state_dict()
    if how.startswith("safetensors"):
        save_file(state, file)
    else:
        if how == "wrapped inside":
            state = {key.replace("encoder_q.", "encoder_q._orig_mod.module."): state[key] for key in state}
        torch.save({"state_dict": state}, file, _use_new_zipfile_serialization=how != "old")
    release = zoo.convert(file, "moco", tmp_path / "out", arch="resnet18", preprocess={"input_size": 64})
    assert torch.equal(made.features(release), made.source_features(model.encoder_q))


def _paco_of(classes: int) -> nn.Module:
    model: Any = made.MoCo()
    model.linear, model.linear_k = nn.Linear(512, classes), nn.Linear(512, classes)
    return model


@pytest.mark.parametrize(
    ("family", "make", "arch", "expected"),
    [
        ("moco-v3", lambda: made.MoCoV3(vit=False), "resnet18", (224, 0.875, (0.485, 0.456, 0.406))),
        ("pico", made.PiCO, "resnet18_cifar", (32, 1.0, (0.4914, 0.4822, 0.4465))),
        ("paco", lambda: _paco_of(8142), "resnet18", (224, 0.875, (0.466, 0.471, 0.38))),
    ],
    ids=["ImageNet", "CIFAR-10", "iNaturalist"],
)
def test_preprocessing_is_the_authors_own(tmp_path: Path, family, make, arch, expected) -> None:
    file = made.save(tmp_path / "f.pth", randomised(make()), arch=arch)  # which the file names
    found = zoo.convert(file, family, tmp_path / "out").preprocess
    assert (found.input_size, found.crop_pct, found.mean) == expected


def test_every_named_architecture_exists() -> None:
    named = {arch for family in FAMILIES.values() for arch in family.architectures}
    assert [arch for arch in named if not timm.is_model(arch)] == []
