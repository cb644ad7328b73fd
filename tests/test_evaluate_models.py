"""`zoo.evaluate` on any model: how its images are made, whether it ends in a classifier, what it refuses."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader

import zoo
from zoo.release import Release

PIXELS = {
    "input_size": 8,
    "crop_pct": 1.0,
    "interpolation": "bilinear",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
}


def test_evaluate_takes_any_model_and_a_data_spec() -> None:
    class Pixels(nn.Flatten):
        pretrained_cfg = PIXELS | {"input_size": (3, 8, 8)}

    entry = zoo.evaluate(Pixels(), "knn", "digits", k=1)
    assert entry["metrics"]["accuracy"] > 95  # digits are easy with all 1,250 training images
    assert entry["data"] == "digits"
    assert entry["preprocess"] == PIXELS


FEW = "digits?per_class=20"


def test_evaluate_looks_through_wrappers_for_what_a_model_says_of_its_images() -> None:
    torch.manual_seed(0)
    model = timm.create_model("cifar_resnet20", num_classes=0)
    bare, *others = (
        zoo.evaluate(each, "knn", FEW, device="cpu")
        for each in (model, nn.DataParallel(model), torch.compile(nn.DataParallel(torch.compile(model))))
    )
    assert bare["preprocess"]["input_size"] == 32
    for entry in others:
        assert (entry["preprocess"], entry["metrics"]) == (bare["preprocess"], bare["metrics"])


@pytest.mark.parametrize("given", [zoo.release.Preprocess(**PIXELS), PIXELS | {"mean": [0.5] * 3}])
def test_evaluate_makes_a_models_images_as_it_is_told(given: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", zoo.errors.ZooWarning)
        entry = zoo.evaluate(nn.Flatten(), "knn", FEW, preprocess=given)
    assert entry["preprocess"] == PIXELS


def test_evaluate_warns_where_nobody_says_how_a_models_images_are_made() -> None:
    with pytest.warns(zoo.errors.ZooWarning, match='Flatten has no "pretrained_cfg"'):
        entry = zoo.evaluate(nn.Flatten(), "knn", FEW)
    assert (entry["preprocess"]["input_size"], entry["preprocess"]["mean"]) == (224, (0.485, 0.456, 0.406))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("imagenet", "preprocess: found 'imagenet' (str), expected a valid dictionary"),
        (PIXELS | {"size": 8}, 'preprocess: unknown key "size"'),
        ({key: value for key, value in PIXELS.items() if key != "std"}, 'preprocess: missing key "std"'),
        (PIXELS | {"interpolation": "bicubik"}, 'Did you mean "bicubic"'),
        (PIXELS | {"input_size": 5000}, 'preprocess: "input_size": found 5000'),
    ],
)
def test_evaluate_names_a_mistake_in_preprocess(given: Any, expected: str) -> None:
    with pytest.raises(zoo.ZooError) as error:
        zoo.evaluate(nn.Flatten(), "knn", FEW, preprocess=given)
    assert expected in str(error.value)


def test_evaluate_refuses_torchvisions_classifiers_and_takes_them_without() -> None:
    def classifier(outputs: int) -> nn.Module:
        last = nn.Sequential(nn.ReLU(), nn.Linear(192, outputs))
        return nn.Sequential(OrderedDict(pool=nn.Flatten(), classifier=last))

    resnet = torchvision.models.resnet18()
    for place, model in {"fc": resnet, r"classifier\.1": classifier(1000)}.items():
        with pytest.raises(zoo.ZooError, match=rf'Identity\(\) in the place of its last layer "{place}"'):
            zoo.evaluate(model, "knn", FEW, preprocess=PIXELS)
    # of other widths it may be a projection, called so by whoever made it
    with pytest.warns(zoo.errors.ZooWarning, match='4 outputs are measured; if .* "classifier.1"'):
        assert zoo.evaluate(classifier(4), "knn", FEW, preprocess=PIXELS)["metrics"]["accuracy"] > 5
    resnet.fc = nn.Identity()
    assert zoo.evaluate(resnet, "knn", FEW, preprocess=PIXELS)["metrics"]["accuracy"] > 5


def test_evaluate_finds_timms_classifier_inside_of_a_model_and_sees_where_it_was_taken_off() -> None:
    inner = timm.create_model("resnet10t", num_classes=5)
    with pytest.raises(zoo.ZooError, match=r"call model\.get_submodule\('1'\)\.reset_classifier\(0\)"):
        zoo.evaluate(nn.Sequential(nn.Identity(), inner), "knn", FEW, preprocess=PIXELS)
    by_hand = timm.create_model("resnet10t", num_classes=512)
    by_hand.fc = nn.Identity()
    assert zoo.evaluate(by_hand, "knn", FEW, preprocess=PIXELS)["metrics"]["accuracy"] > 5


def test_evaluate_says_what_it_cannot_take_of_a_pretrained_cfg() -> None:
    model, whole = nn.Flatten(), PIXELS | {"input_size": (3, 8, 8)}
    for wrong in ({"input_size": 8}, {**whole, "interpolation": "random"}, {**whole, "mean": (0.5,)}):
        model.pretrained_cfg = wrong  # type: ignore[assignment]
        with pytest.raises(zoo.ZooError, match=r"^model: pretrained_cfg: "):
            zoo.evaluate(model, "knn", FEW)
    with pytest.raises(zoo.ZooError, match="expected a name, a folder"):
        zoo.evaluate(len, "knn", FEW, preprocess=PIXELS)


def test_evaluate_gives_a_model_the_size_it_was_built_for() -> None:
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=16, depth=1)
    assert zoo.evaluate(vit, "knn", "digits?per_class=5", k=5)["metrics"]["accuracy"] > 15  # chance is 10


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda paco: zoo.load(paco.path, in_chans=1), "found an input of 1 channel, expected 3"),
        (
            lambda paco: nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8)),
            r"Sequential takes no 224 x 224 images: .* Say which size it takes: preprocess=dict\(input_size=",
        ),
    ],
)
def test_evaluate_says_which_images_a_model_takes(paco: Release, build: Any, expected: str) -> None:
    with pytest.raises(zoo.ZooError, match=expected):
        zoo.evaluate(build(paco), "knn", "digits")


@pytest.mark.parametrize(
    ("arguments", "settings", "expected"),
    [
        (("paco", "linaer"), {}, 'Did you mean "linear"'),
        (("paco", "knn"), {"kk": 3}, 'protocol knn: unknown key "kk". Did you mean "k"?'),
        (("paco", "knn"), {"k": 0}, '"k": found 0'),
        (("paco", "knn"), {"workers": "2"}, "workers: found '2', expected 0 or more"),
        (("paco", "knn"), {"device": "cuda:1"}, 'device: found "cuda:1"'),
        (("paco", "knn"), {"preprocess": PIXELS}, "preprocess: a release says itself how its images are"),
        (("moco", "classifier"), {}, 'protocol "classifier" needs learned centers; this encoder has none'),
        (("paco", "knn", "digitz"), {}, 'Did you mean "digits"'),
        (
            ("paco", "knn", DataLoader([1])),
            {},
            "data: found a DataLoader, expected a folder",
        ),
        (("paco", "knn", {"train": "digits"}), {}, "data: found a str, expected a folder"),
    ],
)
def test_evaluate_names_mistakes(arguments, settings, expected: str, request: pytest.FixtureRequest) -> None:
    release = request.getfixturevalue(arguments[0])
    with pytest.raises(zoo.ZooError) as error:
        zoo.evaluate(release, *arguments[1:], **settings)
    assert expected in str(error.value)


def test_a_model_is_measured_by_the_classifier_that_it_ends_in(paco: Release) -> None:
    model = zoo.load(paco.path, head="centers")
    found, expected = (zoo.evaluate(each, "classifier", "digits", save=False) for each in (model, paco))
    known = {key: value for key, value in found["metrics"].items() if key not in ("many", "medium", "few")}
    assert known == {key: expected["metrics"][key] for key in known}
    assert known.keys() >= {"accuracy", "balanced_accuracy", "per_class", "calibration_error"}
    # what it was trained on it does not say, and that is not the data's training set
    assert [found["metrics"][key] for key in ("many", "medium", "few")] == [None] * 3
    assert (found["data"], found["train_set"]) == ("digits", None)
    assert zoo.evaluate(nn.DataParallel(model), "classifier", "digits")["metrics"] == found["metrics"]
    with pytest.raises(zoo.ZooError, match="found a classifier with 10 outputs"):
        zoo.evaluate(model, "knn", "digits")
    own = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))  # nothing of timm's
    assert "accuracy" in zoo.evaluate(own, "classifier", FEW, preprocess=PIXELS)["metrics"]


@pytest.mark.parametrize(
    ("load", "settings", "expected"),
    [
        ({"head": "centers"}, {"tau": 1.0}, "tau: found a model without the number of training images"),
        ({}, {}, 'found an encoder without a classifier, 64 features; .* head="centers"'),
        (
            {"num_classes": 7},
            {},
            "found a model with 7 outputs, expected 10, the scores of the data's classes",
        ),
    ],
)
def test_a_model_without_what_classifier_needs_is_refused(
    load: dict[str, Any], settings: dict[str, Any], expected: str, paco: Release
) -> None:
    with pytest.raises(zoo.ZooError, match=expected):
        zoo.evaluate(zoo.load(paco.path, **load), "classifier", "digits", **settings)
