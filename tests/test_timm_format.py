"""Models that timm saved are opened, loaded, measured and trained from as releases are; equal to the bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import zoo
from tests.release_helpers import randomised
from zoo.errors import ReleaseError, ZooError


def save(folder: Path, arch: str = "test_resnet", **args: Any) -> nn.Module:
    """Save a model of random weights as timm does."""
    torch.manual_seed(0)
    model = randomised(timm.create_model(arch, **args))
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    return model


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("arch", "args"),
    [
        ("test_resnet", {"num_classes": 0}),
        ("test_vit", {"num_classes": 5}),
        ("deit_tiny_distilled_patch16_224", {"num_classes": 7}),  # two classifiers
        ("levit_128s", {"num_classes": 7}),  # BatchNorm inside them
        ("shvit_s1", {"num_classes": 7}),  # before it, and an encoder without classes lacks it
        ("test_byobnet", {}),
    ],
)
def test_features_and_scores_are_timms_to_the_bit(arch: str, args: dict[str, int], tmp_path: Path) -> None:
    saved = save(tmp_path, arch, **args)
    size = saved.pretrained_cfg["input_size"][-1]  # type: ignore[index]
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=0).eval()(images)
        assert torch.equal(zoo.load(tmp_path).eval()(images), expected)
        release = zoo.open(tmp_path)
        if release.centers is not None:
            scores = saved(images)
            assert torch.equal(release.load(head="centers").eval()(images), scores)
            assert torch.allclose(release.centers.logits(expected), scores, atol=1e-5)
            assert len(release.class_names) == scores.shape[1]
    assert (release.centers is None) == (
        args.get("num_classes") == 0 or arch.startswith(("deit", "levit", "shvit"))
    )
    assert zoo.load(tmp_path, num_classes=3).get_classifier() is not None


def test_names_of_classes_are_the_files_or_imagenets_or_numbers(tmp_path: Path) -> None:
    save(tmp_path / "own", num_classes=2)
    assert zoo.open(tmp_path / "own").class_names == ("0", "1")
    change(tmp_path / "own", label_names=["cat", "dog"])
    assert zoo.open(tmp_path / "own").class_names == ("cat", "dog")
    change(tmp_path / "own", num_classes=3, model_type="timm_wrapper")  # from transformers' `num_labels=3`
    assert zoo.open(tmp_path / "own").class_names == ("0", "1", "2")
    save(tmp_path / "imagenet", num_classes=1000)
    assert "tench" in zoo.open(tmp_path / "imagenet").class_names[0]


def test_it_stays_as_it_is_and_is_not_pushed(tmp_path: Path) -> None:
    save(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    entry = {"protocol": "knn", "data": "x", "split": "test", "metrics": {"accuracy": 1.0}}
    with pytest.raises(ReleaseError, match="read-only"):
        zoo.open(tmp_path).add_evaluation(entry)
    with pytest.raises(ReleaseError, match="plain timm model"):
        zoo.push(tmp_path, "org/name")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": None}, '"architecture"'),
        ({"pretrained_cfg": None}, '"pretrained_cfg"'),
        ({"num_classes": -1}, "num_classes: found '-1'"),
        ({"architecture": "resnet18"}, "resnet18"),
        ({"model_args": {"pretrained": True}}, "pretrained"),
        ({"label_names": ["cat", "dog"]}, "label_names: found 2"),
    ],
)
def test_a_config_that_means_no_model_and_a_pickle_are_refused(changes, message, tmp_path) -> None:
    save(tmp_path)
    change(tmp_path, **changes)
    with pytest.raises(ZooError, match=message):
        zoo.load(tmp_path)
    timm.models.save_for_hf(timm.create_model("test_resnet"), tmp_path / "p", safe_serialization=False)
    with pytest.raises(ReleaseError, match=r"model\.safetensors is missing"):
        zoo.load(tmp_path / "p")
