"""An architecture with the same shapes may compute something else: only those of the authors are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from zoo.conversion import FAMILIES

import zoo
from tests import convert_helpers as made
from tests.test_convert_errors import refusal
from zoo import backbones
from zoo.errors import ReleaseError


@pytest.mark.parametrize("arch", ["resnetblur18", "resnet18d", "seresnet18"])
def test_a_relative_of_the_architecture_is_refused_and_the_right_one_named(tmp_path: Path, arch: str) -> None:
    file = made.save(tmp_path / "f.pth.tar", made.MoCo())
    message = refusal(file, "moco", tmp_path, arch=arch)
    assert message.endswith(". What fits: --arch resnet18")


def test_the_relative_really_computes_something_else(tmp_path: Path) -> None:
    plain = made.randomised(timm.create_model("resnet18", num_classes=0))
    other = timm.create_model("resnetblur18", num_classes=0).eval()
    other.load_state_dict(plain.state_dict())  # the same tensors
    with torch.no_grad():
        assert not torch.allclose(plain(made.images(64)), other(made.images(64)), atol=1e-2)


def test_a_vision_transformer_with_other_activations_is_refused(tmp_path: Path) -> None:
    file = made.save(tmp_path / "f.pth.tar", made.MoCoV3())
    options: dict[str, Any] = {"model_args": made.VIT, "size": 32}
    timm_name = "vit_small_patch16_384"
    assert timm.is_model(timm_name)
    zoo.convert(file, "moco-v3", tmp_path / "ok", arch=timm_name, **options)  # but for its size, the same
    message = refusal(file, "moco-v3", tmp_path, arch="deit_small_patch16_224", **options)
    assert (
        "deit_small_patch16_224 has these tensors, but is not what the files of this family hold" in message
    )
    assert "vit_small_patch16_224 or" in message


def test_an_encoder_of_one_s_own_is_taken_from_lightly_alone(tmp_path: Path) -> None:
    model: Any = torch.nn.Module()
    model.backbone = timm.create_model("mobilenetv3_small_050", num_classes=0)
    file = made.save_lightning(tmp_path / "f.ckpt", made.randomised(model))
    arch = "mobilenetv3_small_050"
    release = zoo.convert(file, "lightly", tmp_path / "ok", arch=arch, size=32)
    with torch.no_grad():
        found, expected = release.load().eval()(made.images()), model.backbone(made.images())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    message = refusal(file, "solo-learn", tmp_path, arch=arch)
    assert "it may compute something else; expected one of resnet18, resnet34" in message


@pytest.mark.parametrize(
    ("arch", "args"),
    [
        ("resnet18", {}),
        ("mobilenetv3_small_050", {}),
        ("ghostnet_050", {}),  # timm's own keys have a shortcut.0, which in others' ResNets is downsample.0
        ("convnext_atto", {}),
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4}),
        ("swin_tiny_patch4_window7_224", {"img_size": 56}),
    ],
)
def test_any_model_of_timm_is_taken_as_its_state_dict_is(
    tmp_path: Path, arch: str, args: dict[str, Any]
) -> None:
    model = made.randomised(timm.create_model(arch, num_classes=5, **args)).eval()
    save_file(model.state_dict(), tmp_path / "mine.safetensors")
    options: dict[str, Any] = {"arch": arch, "model_args": args, "labels": list("abcde"), "license": "mit"}
    release = zoo.convert(tmp_path / "mine.safetensors", "timm", tmp_path / "out", **options)
    made_for = args.get("img_size")
    size = made_for or 64
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(
            release.load().eval()(images), model.forward_head(model.forward_features(images), pre_logits=True)
        )
        torch.testing.assert_close(release.load(head="centers").eval()(images), model(images))
    assert release.class_names == tuple("abcde")
    default = timm.data.resolve_model_data_config(model)
    found = release.preprocess
    assert (found.input_size, found.crop_pct) == (
        made_for or default["input_size"][-1],
        default["crop_pct"],
    )
    assert (found.mean, found.std, found.interpolation) == tuple(
        default[key] for key in ("mean", "std", "interpolation")
    )
    assert release.config["pretrained_cfg"]["license"] == "mit"


def test_a_timm_model_s_architecture_has_to_be_given_and_to_fit(tmp_path: Path) -> None:
    model = timm.create_model("resnet18", num_classes=0)
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    assert refusal(tmp_path / "mine.pth", "timm", tmp_path, arch=None).endswith("give its name: --arch ARCH")
    message = refusal(tmp_path / "mine.pth", "timm", tmp_path, arch="resnet34")
    assert "the encoder is no resnet34: missing: layer1.2.* (12)" in message
    assert zoo.convert(tmp_path / "mine.pth", "timm", tmp_path / "out", arch="resnet18").centers is None


def test_lightly_does_not_take_a_relative_either(tmp_path: Path) -> None:
    model: Any = torch.nn.Module()
    model.backbone = timm.create_model("resnet18", num_classes=0)
    file = made.save_lightning(tmp_path / "f.ckpt", model)
    assert refusal(file, "lightly", tmp_path, arch="resnetblur18").endswith("What fits: --arch resnet18")


@pytest.mark.parametrize(
    ("family", "module", "named", "arch"),
    [
        ("moco", made.MoCo, "resnet18", "resnet18"),
        ("moco", made.MoCo, "resnet50", "resnet18"),  # the tensors are not what the file says
        ("paco", made.PaCo, "resnet20", "cifar_resnet20"),  # the authors' word for it
        ("gpaco", lambda: made.PaCo(generalised=True), None, "cifar_resnet20"),
        ("pico", made.PiCO, ["resnet18"], "resnet18_cifar"),
    ],
)
def test_the_architecture_is_the_one_that_the_file_tells(
    family: str, module: Any, named: Any, arch: str, tmp_path: Path
) -> None:
    file = made.save(tmp_path / "last.pth.tar", module(), arch=named)
    release = zoo.convert(file, family, tmp_path / "out")
    assert release.config["architecture"] == arch
    assert release.name == f"{arch}.{family}_last"


def test_the_name_and_the_folder_follow_from_the_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = made.save(tmp_path / "last.pth.tar", made.MoCo())
    assert zoo.convert(file, "moco").path.resolve() == tmp_path / "runs/resnet18.moco_last"
    with pytest.raises(ReleaseError, match="holds a release already"):
        zoo.convert(file, "moco")


def test_of_several_architectures_that_fit_the_user_chooses_unless_the_file_does(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model_args": made.VIT, "size": 32}  # its size is all that tells them apart
    file = made.save(tmp_path / "f.pth.tar", made.MoCoV3(), arch="vit_small")
    assert refusal(file, "moco-v3", tmp_path, arch=None, **options).endswith(
        "several architectures fit its encoder: vit_small_patch16_224, vit_small_patch16_384; choose one:"
        " --arch vit_small_patch16_224"
    )
    file = made.save(tmp_path / "f.pth.tar", made.MoCoV3(), arch="vit_small_patch16_384")
    release = zoo.convert(file, "moco-v3", tmp_path / "out", **options)
    assert release.config["architecture"] == "vit_small_patch16_384"


def test_where_no_architecture_fits_those_that_were_tried_are_listed(tmp_path: Path) -> None:
    model: Any = torch.nn.Module()
    model.backbone = timm.create_model("mobilenetv3_small_050", num_classes=0)
    file = made.save_lightning(tmp_path / "f.ckpt", model)
    message = refusal(file, "lightly", tmp_path, arch=None, model_args={"drop_path_rate": 0.1})
    assert "none of the family's architectures with drop_path_rate=0.1 fits its encoder" in message
    assert "tried resnet18, resnet34" in message
    assert message.endswith("give one of them or another name of timm's to see what differs: --arch ARCH")


def test_of_a_file_that_names_its_architecture_it_is_listed_what_differs(tmp_path: Path) -> None:
    file = made.save(tmp_path / "f.pth.tar", made.MoCo(), arch="resnet18")
    content = torch.load(file, weights_only=True)
    state = content["state_dict"]
    (key,) = (key for key in state if key.endswith("encoder_q.layer1.0.conv1.weight"))
    del state[key]
    state[key.replace("layer1.0.conv1.weight", "extra")] = torch.zeros(3)
    torch.save(content, file)
    message = refusal(file, "moco", tmp_path, arch=None)
    assert "the encoder is no resnet18: missing: layer1.0.conv1.weight; unexpected: extra" in message


def test_an_argument_that_no_architecture_takes_is_named(tmp_path: Path) -> None:
    file = made.save(tmp_path / "f.pth.tar", made.MoCo())
    message = refusal(file, "moco", tmp_path, arch=None, model_args={"foo": 1})
    assert "foo" in message and "none of the family's architectures" not in message


@pytest.mark.parametrize("family", FAMILIES)
def test_every_named_architecture_exists(family: str) -> None:
    assert all(timm.is_model(arch) for arch in FAMILIES[family].architectures)
    assert backbones.is_own("resnet18_cifar")
