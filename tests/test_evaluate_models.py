"""Any model: its features are those of evaluation mode; how its images are made; what is refused."""

import re
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn

import zoo
from tests.data_fixtures import photo
from tests.release_helpers import trained_encoder
from zoo.errors import DataError
from zoo.evaluation import extract
from zoo.release import Release

PIXELS = dict(input_size=8, crop_pct=1.0, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
FEW = "digits?per_class=20"


def test_evaluate_takes_any_model_and_a_data_spec() -> None:
    class Pixels(nn.Flatten):
        pretrained_cfg = PIXELS | {"input_size": (3, 8, 8)}

    entry = zoo.evaluate(Pixels(), "knn", "digits", k=1)
    assert entry["metrics"]["accuracy"] > 95  # digits are easy with all 1,250 training images
    assert (entry["data"], entry["preprocess"]) == ("digits", PIXELS | {"crop_mode": "center"})


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
def test_images_are_cropped_as_the_model_says(mode: str) -> None:
    class Pixels(nn.Flatten):
        pretrained_cfg = PIXELS | {"input_size": (3, 8, 8), "crop_pct": 0.5, "crop_mode": mode}

    picture = photo(20, 60, 0)
    config = timm.data.resolve_data_config(pretrained_cfg=Pixels.pretrained_cfg)
    expected = timm.data.create_transform(**config)(picture).flatten()
    torch.testing.assert_close(torch.as_tensor(zoo.embed(Pixels(), [picture]).features[0]), expected)


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: timm.create_model("resnet10t", num_classes=5), "found a classifier with 5 outputs"),
        (torchvision.models.resnet18, r'Identity\(\) in the place of "fc"'),
    ],
)
def test_evaluate_refuses_classifiers_and_takes_them_without(make: Any, message: str) -> None:
    model = make()
    with pytest.raises(zoo.ZooError, match=message):
        zoo.evaluate(model, "knn", FEW, preprocess=PIXELS)
    model.fc = nn.Identity()
    assert zoo.evaluate(model, "knn", FEW, preprocess=PIXELS)["metrics"]["accuracy"] > 5


def test_evaluate_says_what_it_cannot_take_of_a_model() -> None:
    with pytest.raises(zoo.ZooError, match=r"Sequential takes no 224 x 224 images: .* Say which size"):
        zoo.evaluate(nn.Sequential(nn.Flatten(), nn.Linear(768, 8)), "knn", "digits")
    model = nn.Flatten()
    model.pretrained_cfg = PIXELS | {"input_size": (3, 8, 8), "interpolation": "random"}  # type: ignore
    with pytest.raises(zoo.ZooError, match=r"^model: pretrained_cfg: "):
        zoo.evaluate(model, "knn", FEW)


@pytest.mark.parametrize(
    ("arguments", "settings", "expected"),
    [
        (("paco", "linaer"), {}, 'Did you mean "linear"'),
        (("paco", ["knn", "linaer"]), {}, 'Did you mean "linear"'),
        (("paco", ["knn", "knn"]), {}, "found ['knn', 'knn'], expected one or more, each once"),
        (("paco", []), {}, "found [], expected one or more"),
        (("paco", None), {}, 'found "None", expected one of'),
        (("paco", ["knn", "linear"]), {"tau": 0.1}, 'protocol linear: unknown key "tau"'),
        (("paco", ["knn", "linear_full"]), {"out": "x"}, 'out, resume: protocol "knn" trains nothing'),
        (("paco", "knn", ["a.png", "b.png"]), {}, 'data "list": the images of the test split have no labels'),
        (("paco", "knn"), {"kk": 3}, 'protocol knn: unknown key "kk". Did you mean "k"?'),
        (("paco", "knn"), {"workers": "2"}, "workers: found '2', expected 0 or more"),
        (("paco", "knn"), {"resume": True}, 'out, resume: protocol "knn" trains nothing'),
        (("paco", ["semi_supervised", "linear_full"]), {"epochs": 3}, "milestones: found [60, 80], expected"),
        (("paco", "knn"), {"preprocess": PIXELS}, "preprocess: a release has its own; give it only"),
        (("moco", "classifier"), {}, "has no centers"),
        (("paco", "knn", "digitz"), {}, 'Did you mean "digits"'),
    ],
)
def test_evaluate_names_mistakes(arguments, settings, expected: str, request: pytest.FixtureRequest) -> None:
    release = request.getfixturevalue(arguments[0])
    before = release.metrics
    with pytest.raises(zoo.ZooError, match=re.escape(expected)):
        zoo.evaluate(release, *arguments[1:], **settings)
    assert zoo.open(release.path).metrics == before, "nothing was measured"


def test_a_model_is_measured_by_the_classifier_that_it_ends_in(paco: Release) -> None:
    model = zoo.load(paco.path, head="centers")
    found, expected = (zoo.evaluate(each, "classifier", "digits", save=False) for each in (model, paco))
    # what it was trained on it does not say, and that is not the data's training set
    assert found["metrics"] == expected["metrics"] | dict.fromkeys(("many", "medium", "few"))
    assert (found["data"], found["train_set"]) == ("digits", None)
    assert zoo.evaluate(nn.DataParallel(model), "classifier", "digits")["metrics"] == found["metrics"]
    with pytest.raises(zoo.ZooError, match="found a classifier with 10 outputs"):
        zoo.evaluate(model, "knn", "digits")
    with pytest.raises(zoo.ZooError, match="tau: found no training images of each class"):
        zoo.evaluate(model, "classifier", "digits", tau=1.0)
    with pytest.raises(zoo.ZooError, match="scores: found 64 dimensions, expected 10"):
        zoo.evaluate(zoo.load(paco.path), "classifier", "digits")


def encoder() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 3, 8, 8, generator=g), torch.arange(s, s + n)) for s, n in ((0, 4), (4, 3))]


def test_features_are_those_of_evaluation_mode_and_the_model_is_left_as_it_was() -> None:
    model, seen = encoder().train(), list[int]()
    model[1].eval()  # a frozen BatchNorm inside a model that trains
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = extract(model, batches(), device="cpu", progress=seen.append)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model.eval()
    expected = torch.cat([model(image[None]) for images, _ in batches() for image in images]).detach()
    torch.testing.assert_close(found.features, expected)
    assert found.labels.tolist() == list(range(7)) and seen == [4, 3]
    (nn.Parameter(torch.ones(8)) * found.features).sum().backward()  # no inference tensor
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(extract(model, batches(), device="cpu").features, found.features)
    half = extract(encoder().bfloat16(), batches(), device="cpu").features
    assert half.dtype == torch.float32
    alone = extract(encoder(), [images for images, _ in batches()], device="cpu")
    assert alone.labels.tolist() == [-1] * 7
    with pytest.raises(DataError, match=r"returned \[4, 8, 6, 6\], expected \[4, D\]"):
        extract(encoder()[:3], batches(), device="cpu")


class Odd(nn.Module):
    """A CIFAR ResNet's maps behind a forward pass that torch.fx cannot trace, or traces to something else."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.maps, self.way, self.seen = trained_encoder(), way, torch.zeros(4, 64)
        self.maps.reset_classifier(0, "")
        if way == "hook":
            self.maps.layer3.register_forward_hook(self.see)

    def see(self, _layer: nn.Module, _given: Any, maps: torch.Tensor) -> None:
        self.seen = maps.mean((2, 3))

    def forward(self, x: torch.Tensor) -> Any:
        maps = self.maps(x)
        if self.way == "branch":
            return maps.mean((2, 3)) if float(x.mean()) < 9 else maps
        if self.way == "tuple":
            return maps, maps
        return {"hook": lambda: self.seen, "view": lambda: maps.contiguous().view(len(x), -1)}[self.way]()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["plain", "branch", "hook", "view"])
def test_the_features_of_whole_batches_are_the_models_own(way: str, dtype: torch.dtype) -> None:
    model = (trained_encoder() if way == "plain" else Odd(way)).to(dtype).eval()
    before = {key: (value.clone(), value.stride()) for key, value in model.state_dict().items()}
    images = torch.randn(71, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    found = extract(model, images.split(40), device="cpu").features
    with torch.no_grad():
        expected = model.float()(images)
    error = (found - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype == torch.float32 else 0.05)
    for key, value in model.to(dtype).state_dict().items():
        assert torch.equal(value, before[key][0]) and value.stride() == before[key][1]


def test_a_batch_of_what_are_no_features_is_refused() -> None:
    with pytest.raises(DataError, match=r"the model returned .*tuple.*, expected \[40, D\]"):
        extract(Odd("tuple"), [torch.zeros(40, 3, 16, 16)], device="cpu")


def test_a_release_is_measured_in_bf16_as_a_model(paco: Release) -> None:
    half = zoo.load(paco.path, dtype=torch.bfloat16)
    for protocol in ("knn", "linear"):
        found, full = (zoo.evaluate(each, protocol, "digits", save=False) for each in (half, paco))
        assert found["metrics"]["accuracy"] == pytest.approx(full["metrics"]["accuracy"], abs=2)
