"""Files that hold less than a training's checkpoint: an encoder by itself, or only the momentum encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn
from zoo.conversion import FAMILIES

import zoo
from tests import convert_helpers as made
from tests.test_convert_families import VIT_SMALL, converted, features, source
from zoo.errors import ReleaseError

FC = "classifier or projection of a bare encoder"


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_by_itself_is_of_every_family(tmp_path: Path, family: str) -> None:
    model: Any = made.randomised(torchvision.models.resnet18())
    model.fc = nn.Identity()
    torch.save(model.state_dict(), tmp_path / "resnet18.pth")
    release = converted(tmp_path / "resnet18.pth", family, tmp_path / "out", "resnet18", size=64)
    assert torch.equal(features(release), source(model))
    assert release.centers is None


def test_the_classifier_of_a_linear_evaluation_is_left_out_and_listed(tmp_path: Path) -> None:
    """facebookresearch/moco, main_lincls.py."""
    model: Any = made.randomised(torchvision.models.resnet18())
    file = made.save(tmp_path / "lincls.pth.tar", model, best_acc1=torch.tensor(67.5))
    release = converted(file, "moco", tmp_path / "out", "resnet18", size=64)
    assert torch.equal(features(release), source(model))
    assert release.centers is None
    assert release.recipe["converted"]["left_out"][FC] == "fc.weight, fc.bias"


def test_moco_v3_converted_to_deit_has_twelve_heads(tmp_path: Path) -> None:
    """facebookresearch/moco-v3, convert_to_deit.py."""
    model: Any = made.randomised(made.MoCoV3())
    model.base_encoder.head = nn.Identity()
    torch.save({"model": model.base_encoder.state_dict()}, tmp_path / "deit.pth")
    options = {"model_args": made.VIT, "size": 32}
    release = converted(tmp_path / "deit.pth", "moco-v3", tmp_path / "out", VIT_SMALL, **options)
    assert torch.equal(features(release), source(model.base_encoder))
    assert release.config["model_args"]["num_heads"] == 12


def test_the_parameters_that_the_tutorials_of_lightly_save(tmp_path: Path) -> None:
    resnet = made.randomised(torchvision.models.resnet18())
    backbone = nn.Sequential(*list(resnet.children())[:-1])
    for name, content in (
        ("tutorial.pth", {"resnet18_parameters": backbone.state_dict()}),
        ("plain.pth", backbone.state_dict()),
    ):
        torch.save(content, tmp_path / name)
        release = converted(tmp_path / name, "lightly", tmp_path / name[:5], "resnet18", size=64)
        assert torch.equal(features(release), source(resnet))


def test_numbered_layers_are_not_taken_for_an_encoder_of_others(tmp_path: Path) -> None:
    backbone = nn.Sequential(*list(torchvision.models.resnet18().children())[:-1])
    torch.save(backbone.state_dict(), tmp_path / "f.pth")
    with pytest.raises(ReleaseError, match=r"--family lightly$"):
        zoo.convert(tmp_path / "f.pth", "moco", tmp_path / "out", arch="resnet18")


def test_moco_of_the_cifar_notebook_by_itself(tmp_path: Path) -> None:
    model: Any = made.randomised(made.NotebookEncoder())
    torch.save(model.state_dict(), tmp_path / "f.pth")
    release = converted(tmp_path / "f.pth", "moco", tmp_path / "out", "resnet18_cifar")
    assert torch.equal(features(release), source(model.net[:-2]))


def test_solo_learn_by_itself_keeps_its_padding(tmp_path: Path) -> None:
    model: Any = made.randomised(made.SoloLearnMoCo())
    torch.save(model.backbone.state_dict(), tmp_path / "f.pth")
    release = converted(tmp_path / "f.pth", "solo-learn", tmp_path / "out", "resnet18_cifar")
    assert torch.equal(features(release), source(model.backbone))


MOMENTUM: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "moco": (made.MoCo, ("encoder_k.",), "resnet18"),
    "moco-v3": (lambda: made.MoCoV3(vit=False), ("momentum_encoder.",), "resnet18"),
    "paco": (made.PaCo, ("encoder_k.", "linear_k."), "cifar_resnet20"),
    "pico": (made.PiCO, ("encoder_k.",), "resnet18_cifar"),
    "solo-learn": (made.SoloLearnMoCo, ("momentum_backbone.",), "resnet18_cifar"),
}


@pytest.mark.parametrize("family", MOMENTUM)
def test_a_file_with_only_the_momentum_encoder(tmp_path: Path, family: str) -> None:
    create, kept, arch = MOMENTUM[family]
    model: Any = made.randomised(create())
    whole = made.save(tmp_path / "whole.pth", model)
    state = {key: value for key, value in model.state_dict().items() if key.startswith(kept)}
    torch.save({"state_dict": state}, tmp_path / "f.pth")
    options = {"encoder": "momentum", "size": 64}
    release = converted(tmp_path / "f.pth", family, tmp_path / "out", arch, **options)
    expected = converted(whole, family, tmp_path / "whole", arch, **options)
    assert torch.equal(features(release), features(expected))
    assert (release.centers is None) == (expected.centers is None)
    with pytest.raises(ReleaseError, match=r"holds no query encoder, only momentum .*--encoder momentum$"):
        zoo.convert(tmp_path / "f.pth", family, tmp_path / "query", arch=arch)


def test_ft_with_only_the_momentum_encoder(tmp_path: Path) -> None:
    model: Any = made.randomised(made.SingleHead())
    torch.save({"model_ema": model.state_dict()}, tmp_path / "f.pth")
    release = converted(tmp_path / "f.pth", "ft", tmp_path / "out", "resnet18", encoder="momentum", size=64)
    assert torch.equal(features(release), source(model.encoder))


def test_a_linear_classifier_without_an_encoder_is_told_so(tmp_path: Path) -> None:
    """DTennant/CL-Visualizing-Feature-Transformation, learning/linear_trainer.py: `save`."""
    state = {f"module.{key}": value for key, value in nn.Linear(512, 7).state_dict().items()}
    torch.save({"epoch": 60, "classifier": state, "optimizer": {}}, tmp_path / "ckpt_epoch_60.pth")
    with pytest.raises(ReleaseError, match="a linear classifier alone; the encoder is in the checkpoint"):
        zoo.convert(tmp_path / "ckpt_epoch_60.pth", "ft", tmp_path / "out", arch="resnet18")


def test_what_is_altogether_unknown_is_not_to_be_left_out(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.zeros(2), "b.weight": torch.zeros(2)}, tmp_path / "f.pth")
    with pytest.raises(ReleaseError, match="2 of 2 keys are not understood as moco") as caught:
        zoo.convert(tmp_path / "f.pth", "moco", tmp_path / "out", arch="resnet18")
    assert "leave" not in str(caught.value)


def _old_swin(model: nn.Module) -> dict[str, torch.Tensor]:
    """As timm 0.6 named them: downsampling at the end of a stage, with two buffers that are computed."""
    state: dict[str, torch.Tensor] = {}
    for key, value in model.state_dict().items():
        stage = key.split(".")[1]
        old = f"layers.{int(stage) - 1}." if ".downsample." in key else f"layers.{stage}."
        state[key.replace(f"layers.{stage}.", old) if key.startswith("layers.") else key] = value
        if key.endswith("relative_position_bias_table"):
            state[key.replace("bias_table", "index")] = torch.zeros(49, 49, dtype=torch.long)
            state[key.replace("attn.relative_position_bias_table", "attn_mask")] = torch.zeros(4, 49, 49)
    return state


def test_solo_learn_swin_of_old_timm(tmp_path: Path) -> None:
    arch = "swin_tiny_patch4_window7_224"
    args = {"depths": [1, 1, 1, 1], "img_size": 56}
    model = made.randomised(timm.create_model(arch, num_classes=0, **args))
    state = {f"backbone.{key}": value for key, value in _old_swin(model).items()}
    torch.save({"state_dict": state}, tmp_path / "swin.ckpt")
    release = converted(
        tmp_path / "swin.ckpt", "solo-learn", tmp_path / "out", arch, model_args=args, size=56
    )
    with torch.no_grad():
        assert torch.equal(features(release, 56), model(made.images(56)))
    left_out = release.recipe["converted"]["left_out"]["computed when the encoder is built"]
    assert left_out.count("backbone.layers") == 4


def test_keys_are_left_out_by_shell_patterns(tmp_path: Path) -> None:
    model: Any = made.MoCo()
    state = {**model.state_dict(), "encoder_q.layer1.extra": torch.zeros(1), "decoder.a": torch.zeros(1)}
    torch.save({"state_dict": state}, tmp_path / "f.pth")
    release = converted(
        tmp_path / "f.pth", "moco", tmp_path / "out", "resnet18", leave_out=["*.extra", "deco?er.*"]
    )
    left_out = release.recipe["converted"]["left_out"]["left out on request"]
    assert left_out == "encoder_q.layer1.extra, decoder.a"
