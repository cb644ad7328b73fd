"""Models of timm, whoever trained them: the built model and the file's own words say how they are read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import zoo
from tests import convert_helpers as made

SMALL = "resnet18_cifar"


@pytest.mark.parametrize(
    ("arch", "args", "linear"),
    [
        ("ghostnet_050", {}, True),  # timm's own keys have a shortcut.0, in others' ResNets downsample.0
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4, "depth": 1}, True),
        ("resnetv2_18", {}, True),  # a 1x1 convolution
        ("efficientvit_b0", {}, True),  # head.classifier.4, behind layers that are the encoder's
        ("deit_tiny_distilled_patch16_224", {"img_size": 32, "depth": 1}, False),  # two heads
        ("levit_128s", {}, False),  # two heads with BatchNorm
    ],
)
def test_the_built_model_tells_the_classifier(
    tmp_path: Path, arch: str, args: dict[str, Any], linear: bool
) -> None:
    model: Any = made.randomised(timm.create_model(arch, num_classes=5, **args))
    save_file(model.state_dict(), tmp_path / "mine.safetensors")
    options: dict[str, Any] = {"arch": arch, "model_args": args, "labels": list("abcde"), "license": "mit"}
    release = zoo.convert(tmp_path / "mine.safetensors", "timm", tmp_path / "out", **options)
    images = torch.randn(2, 3, release.preprocess.input_size, release.preprocess.input_size)
    headless = timm.create_model(arch, num_classes=0, **args).eval()
    headless.load_state_dict({key: model.state_dict()[key] for key in headless.state_dict()})
    with torch.no_grad():
        torch.testing.assert_close(release.load().eval()(images), headless(images))
        assert (release.centers is not None) is linear
        left_out = release.recipe["converted"]["left_out"]
        assert any("not one linear layer" in what for what in left_out) is not linear
        if linear:
            found = release.require_centers().logits(headless(images))
            torch.testing.assert_close(found, model(images), rtol=1e-3, atol=1e-3)
            if arch != "resnetv2_18":  # whose head is no linear layer of timm's
                torch.testing.assert_close(release.load(head="centers").eval()(images), model(images))
    default = timm.data.resolve_model_data_config(model)
    preprocess = release.preprocess
    assert preprocess.input_size == args.get("img_size", default["input_size"][-1])
    for key in ("crop_pct", "mean", "std", "interpolation"):
        assert getattr(preprocess, key) == default[key]
    assert release.class_names == tuple("abcde")
    assert release.config["pretrained_cfg"]["license"] == "mit"


@pytest.fixture(scope="module")
def model() -> Any:
    return made.randomised(timm.create_model(SMALL, num_classes=5))


def written(folder: Path, state: dict[str, Any], **entries: Any) -> Path:
    torch.save({"state_dict": state, **entries}, folder / "f.pth")
    return folder / "f.pth"


def settings(**changes: Any) -> argparse.Namespace:
    """What timm's train.py stores of its command line."""
    plain = {"model": SMALL, "num_classes": 5, "gp": None, "bn_eps": None, "model_kwargs": {}}
    pixels = {"img_size": None, "input_size": None, "crop_pct": None, "interpolation": ""}
    data = {"mean": None, "std": None, "class_map": "", "dataset": "", "data_dir": Path("data")}
    return argparse.Namespace(**{**plain, **pixels, **data, **changes})


@pytest.mark.parametrize("how", ["Lightning", "no counters", "no bias", "average"])
def test_ways_to_save_a_model(tmp_path: Path, model: Any, how: str) -> None:
    state, entries, encoder = dict(model.state_dict()), {}, "query"
    with torch.no_grad():
        expected = model(made.images())
        if how == "Lightning":
            state = {f"model.{key}": value for key, value in state.items()}
        elif how == "no counters":
            state = {key: value for key, value in state.items() if "num_batches_tracked" not in key}
        elif how == "no bias":
            expected = expected - state.pop("fc.bias")
        else:
            other = timm.create_model(SMALL, num_classes=5).state_dict()
            entries, state, encoder = {"state_dict_ema": state}, other, "momentum"
    file = written(tmp_path, state, **entries)
    options: dict[str, Any] = {"arch": SMALL, "encoder": encoder}
    release = zoo.convert(file, "timm", tmp_path / "out", **options)
    with torch.no_grad():
        torch.testing.assert_close(release.load(head="centers").eval()(made.images()), expected)


def test_what_a_file_of_train_py_says_is_used(tmp_path: Path, model: Any) -> None:
    said = settings(mean=[0.5], std=[0.2, 0.3, 0.4], img_size=40, crop_pct=0.9, interpolation="bilinear")
    file = written(tmp_path, model.state_dict(), args=said)
    found = zoo.convert(file, "timm", tmp_path / "out").preprocess  # the architecture is in it, too
    assert found == zoo.release.Preprocess(40, 0.9, "bilinear", (0.5,) * 3, (0.2, 0.3, 0.4))


@pytest.mark.parametrize(
    ("said", "given", "named"),
    [
        ({"mean": [0.5]}, {"mean": [0.4] * 3}, "mean"),
        ({"std": [0.5]}, {"std": 0.4}, "std"),
        ({}, {"arch": "resnet18"}, "arch"),
        ({"model_kwargs": {"checkpoint_path": "x.pth"}}, {}, "checkpoint_path"),
        ({"mean": "0.5"}, {}, "mean"),
    ],
)
def test_what_contradicts_the_file_is_refused(
    tmp_path: Path, model: Any, said: dict[str, Any], given: dict[str, Any], named: str
) -> None:
    file = written(tmp_path, model.state_dict(), args=settings(**said))
    assert named in made.refusal(file, "timm", tmp_path, **given)


def test_an_encoder_of_one_channel_sees_an_image_in_grey(tmp_path: Path) -> None:
    model: Any = made.randomised(timm.create_model(SMALL, num_classes=5, in_chans=1))
    file = written(tmp_path, model.state_dict())
    assert "--mean" in made.refusal(file, "timm", tmp_path, arch=SMALL)
    release = zoo.convert(file, "timm", tmp_path / "out", arch=SMALL, mean=0.4, std=0.2)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    grey = (torch.from_numpy(np.array(image.convert("L"))) / 255 - 0.4) / 0.2
    with torch.no_grad():
        found = release.load(head="centers").eval()(release.transform()(image)[None])
        torch.testing.assert_close(found, model(grey[None, None]), rtol=1e-2, atol=2e-2)  # 8 bits of grey
        assert not torch.allclose(found, model(grey[None, None].flip(2)), rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.int8], ids=str)
def test_other_numbers_are_not_cast(tmp_path: Path, model: Any, dtype: torch.dtype) -> None:
    for key in ("layer1.0.conv1.weight", "fc.weight"):
        state = {**model.state_dict(), key: model.state_dict()[key].to(dtype)}
        message = made.refusal(written(tmp_path, state), "timm", tmp_path, arch=SMALL)
        assert f"{key} is {str(dtype).removeprefix('torch.')}" in message


def test_the_architecture_has_to_be_given_and_to_fit(tmp_path: Path, model: Any) -> None:
    file = written(tmp_path, model.state_dict())
    assert "--arch ARCH" in made.refusal(file, "timm", tmp_path)
    assert "no resnet50_cifar: missing: layer1." in made.refusal(
        file, "timm", tmp_path, arch="resnet50_cifar"
    )
    file = written(tmp_path, {**model.state_dict(), "criterion.weight": torch.ones(5)})
    message = made.refusal(file, "timm", tmp_path, arch=SMALL)
    assert "unexpected: criterion.weight" in message and "--leave-out" in message
    release = zoo.convert(file, "timm", tmp_path / "out", arch=SMALL, leave_out=["criterion.*"])
    assert release.recipe["converted"]["left_out"] == {"left out on request": "criterion.weight"}


@pytest.mark.parametrize("family", ["moco", "solo-learn", "lightly"])
def test_a_plain_model_is_not_taken_for_a_projects(tmp_path: Path, family: str) -> None:
    """Nor labelled with its licence: nothing in the file says who trained it."""
    model = timm.create_model("vit_small_patch16_224", **made.VIT)
    assert "--family timm" in made.refusal(written(tmp_path, model.state_dict()), family, tmp_path)


def test_a_whole_pickled_model_is_refused_by_its_class(tmp_path: Path, model: Any) -> None:
    torch.save(model, tmp_path / "whole.pth")
    message = made.refusal(tmp_path / "whole.pth", "timm", tmp_path, arch=SMALL)
    assert '"timm.models.resnet.ResNet"' in message


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of classes 1 to 12, and a model that is right of all images when they are in natural order."""
    folder = tmp_path_factory.mktemp("numbered")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    for number, image in enumerate(pixels, 1):
        (folder / "train" / str(number)).mkdir(parents=True)
        for copy in range(number):  # so that counts tell the classes apart
            Image.fromarray(image).save(folder / "train" / str(number) / f"{copy}.png")
    model: Any = timm.create_model(SMALL, num_classes=12).eval()
    with torch.no_grad():
        inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
        features = model.forward_head(model.forward_features((inputs - 0.5) / 0.5), pre_logits=True)
        model.fc.weight.copy_(features)  # the nearest class mean
        model.fc.bias.copy_(-0.5 * features.square().sum(1))
    return folder, model.state_dict()


NATURAL = [str(number) for number in range(1, 13)]


@pytest.mark.parametrize(
    ("said", "order"), [(None, "natural"), (settings(mean=[0.5], std=[0.5]), None)], ids=["given", "file"]
)
def test_classes_are_numbered_as_in_training(tmp_path: Path, numbered: Any, said: Any, order: Any) -> None:
    folder, state = numbered
    file = written(tmp_path, state, args=said)
    options: dict[str, Any] = {} if said else {"mean": 0.5, "std": 0.5, "arch": SMALL}
    options |= {"label_order": order, "class_counts": f"folder:{folder}"}
    for name, labels in (("folder", folder), ("listed", NATURAL)):  # a list has its own order
        release = zoo.convert(file, "timm", tmp_path / name, labels=labels, **options)
        assert [*release.class_names] == NATURAL
        assert release.require_centers().class_counts.tolist() == [*range(1, 13)]
        assert release.recipe["converted"]["label_order"] == "natural"


@pytest.mark.parametrize(
    ("said", "order", "expected"),
    [
        (None, None, "--label-order natural|plain"),
        (None, "plain", "contradict the plain order"),
        (settings(dataset="torch/image_folder"), None, "contradict the plain order"),
        (settings(class_map="map.txt"), None, "--label-order natural|plain"),
    ],
)
def test_an_order_of_classes_that_is_unknown_or_contradicted_is_refused(
    tmp_path: Path, numbered: Any, said: argparse.Namespace | None, order: Any, expected: str
) -> None:
    folder, state = numbered
    options: dict[str, Any] = {"arch": SMALL, "mean": 0.5, "std": 0.5, "label_order": order}
    message = made.refusal(written(tmp_path, state, args=said), "timm", tmp_path, labels=folder, **options)
    assert expected in message
    assert "natural 100.0 %" in message
