"""Models of timm, whoever trained them: the built model and the file's own words say how they are read."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import zoo
from tests import convert_helpers as made
from tests.data_fixtures import shard
from tests.release_helpers import randomised
from zoo.errors import ZooWarning

pytestmark = pytest.mark.filterwarnings("ignore:preprocess. the file has none")

SMALL = "resnet18_cifar"
NATURAL = [str(number) for number in range(1, 13)]


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
def test_the_built_model_tells_the_classifier(tmp_path, arch, args, linear) -> None:
    model: Any = randomised(timm.create_model(arch, num_classes=5, **args))
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
    assert release.preprocess.input_size == args.get("img_size", default["input_size"][-1])
    for key in ("crop_pct", "mean", "std", "interpolation"):
        assert getattr(release.preprocess, key) == default[key]
    assert release.class_names == tuple("abcde")


@pytest.fixture(scope="module")
def model() -> Any:
    return randomised(timm.create_model(SMALL, num_classes=5))


def written(folder: Path, state: dict[str, Any], **entries: Any) -> Path:
    torch.save({"state_dict": state, **entries}, folder / "f.pth")
    return folder / "f.pth"


def settings(**changes: Any) -> argparse.Namespace:
    """What timm's train.py stores of its command line."""
    plain = {"model": SMALL, "gp": None, "model_kwargs": {}, "interpolation": "", "data_dir": Path("data")}
    return argparse.Namespace(**{**plain, **changes})


@torch.no_grad()
@pytest.mark.parametrize("how", ["Lightning", "no counters", "no bias", "average", "tutorial"])
def test_ways_to_save_a_model(tmp_path: Path, model: Any, how: str) -> None:
    state, entries, expected = dict(model.state_dict()), {}, model(made.images())
    if how == "Lightning":
        state = {f"model.{key}": value for key, value in state.items()}
    elif how == "no counters":
        state = {key: value for key, value in state.items() if "num_batches_tracked" not in key}
    elif how == "no bias":
        expected = expected - state.pop("fc.bias")
    elif how == "average":
        entries, state = {"state_dict_ema": state}, timm.create_model(SMALL, num_classes=5).state_dict()
    options: dict[str, Any] = {"arch": SMALL, "encoder": "momentum" if entries else "query"}
    file = written(tmp_path, state, **entries)
    if how == "tutorial":  # PyTorch's own
        torch.save({"model_state_dict": state, "epoch": 1, "loss": 0.5}, file)
    release = zoo.convert(file, "timm", tmp_path / "out", **options)
    torch.testing.assert_close(release.load(head="centers").eval()(made.images()), expected)


def test_what_a_file_of_train_py_says_is_used(tmp_path: Path, model: Any) -> None:
    said = settings(mean=[0.5], std=[0.2, 0.3, 0.4], img_size=40, crop_pct=0.9, interpolation="bilinear")
    file = written(tmp_path, model.state_dict(), args=said)
    found = zoo.convert(file, "timm", tmp_path / "out").preprocess  # the architecture is in it, too
    assert found == zoo.release.Preprocess(40, 0.9, "bilinear", (0.5,) * 3, (0.2, 0.3, 0.4))


def test_what_a_file_cannot_say_is_refused(tmp_path: Path, model: Any) -> None:
    for said, named in (
        ({"model_kwargs": {"checkpoint_path": "x.pth"}}, "checkpoint_path"),
        ({"model_kwargs": 3}, "f.pth"),
        *(({"mean": "0.5"}, "mean"), ({"model": "resnet50_cifar"}, "missing: layer1.")),
    ):
        file = written(tmp_path, model.state_dict(), args=settings(**said))
        assert named in made.refusal(file, "timm", tmp_path)
    grey = randomised(timm.create_model(SMALL, num_classes=5, in_chans=1)).state_dict()
    file = written(tmp_path, grey, args=settings(model_kwargs={"in_chans": 1}))
    assert "expected input" in made.refusal(file, "timm", tmp_path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.int8], ids=str)
def test_other_numbers_are_not_cast(tmp_path: Path, model: Any, dtype: torch.dtype) -> None:
    for key in ("layer1.0.conv1.weight", "fc.weight"):
        state = {**model.state_dict(), key: model.state_dict()[key].to(dtype)}
        message = made.refusal(written(tmp_path, state), "timm", tmp_path, arch=SMALL)
        assert f"{key} is {str(dtype).removeprefix('torch.')}" in message


def test_the_architecture_has_to_be_given_and_to_fit(tmp_path: Path, model: Any) -> None:
    assert "--arch ARCH" in made.refusal(written(tmp_path, model.state_dict()), "timm", tmp_path)
    file = written(tmp_path, {**model.state_dict(), "criterion.weight": torch.ones(5)})
    message = made.refusal(file, "timm", tmp_path, arch=SMALL)
    assert "unexpected: criterion.weight" in message and "--leave-out" in message
    with pytest.warns(ZooWarning, match=f"preprocess: the file has none, {SMALL}'s in timm is assumed"):
        release = zoo.convert(file, "timm", tmp_path / "out", arch=SMALL, leave_out=["criterion.*"])
    assert release.recipe["converted"]["left_out"] == {"left out on request": "criterion.weight"}


def test_classes_of_a_folder_are_numbered_as_in_training(tmp_path: Path) -> None:
    for name in NATURAL:
        (tmp_path / "data" / "train" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "data" / "train" / name / "0.png")
    file = written(tmp_path, timm.create_model(SMALL, num_classes=12).state_dict())
    options: dict[str, Any] = {"arch": SMALL, "class_counts": range(12)}
    message = made.refusal(file, "timm", tmp_path, labels=tmp_path / "data", **options)
    assert "--label-order natural (1, 2, 10) or plain" in message
    (tmp_path / "names.csv").write_text("\n".join(["name", *NATURAL]))
    (empty := tmp_path / "data" / "train" / "13").mkdir()
    for labels, expected in (("names.csv", "expected a .txt file"), ("data", "no image in the folder 13")):
        assert expected in made.refusal(file, "timm", tmp_path, labels=tmp_path / labels, **options)
    empty.rmdir()
    shard(tmp_path / "shard.parquet", range(12), names=NATURAL)
    for order, labels, expected in (
        *(("natural", "data", NATURAL), ("plain", "data", sorted(NATURAL))),
        (None, "shard.parquet", NATURAL),
        (None, [*reversed(NATURAL)], [*reversed(NATURAL)]),  # a list has its own order
    ):
        given = tmp_path / labels if isinstance(labels, str) else labels
        out = tmp_path / f"of {order} {labels!s:.5}"
        release = zoo.convert(file, "timm", out, labels=given, label_order=order, **options)
        assert [*release.class_names] == expected
        assert release.require_centers().class_counts.tolist() == [*range(12)]
