"""From a recipe to a release and back: what a user of the Python API meets."""

from __future__ import annotations

import re
import shutil
import time
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader

import zoo
from tests.data_fixtures import photo
from tests.release_helpers import plain_timm, reads_folders
from zoo.api import plan_pretraining, pretraining
from zoo.data import open_dataset
from zoo.errors import ZooError
from zoo.experiments.record import from_release
from zoo.recipe import Recipe
from zoo.release import Release
from zoo.training import RunFolder

PACO = "cifar_resnet20.paco_digits_lt50"
MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"


def digit_images(release: Release, count: int = 32) -> torch.Tensor:
    """Test images through the release's own transform, one by one as a user would."""
    dataset = open_dataset(Recipe.load(PACO).data, "test", None)
    transform = release.transform()
    return torch.stack([transform(dataset.image(i)) for i in range(count)])


def test_a_recipe_becomes_a_release_folder_with_everything_in_it(paco: Release) -> None:
    names = {p.name for p in paco.path.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "centers.safetensors",
        "recipe.yaml",
        "metrics.json",
        "history.json",
        "README.md",
        "accuracy.png",
        "balance.png",
        "centers.png",
        "curves.png",
        "features.png",
        "scores.png",
        "run",
    }
    paco.verify()
    released = Recipe.from_yaml((paco.path / "recipe.yaml").read_text(), "released")
    assert released.training.epochs == 12  # the override is recorded
    assert paco.config["zoo"]["recipe_sha256"] == released.sha256
    training = paco.metrics["training"]
    assert training["steps"] == 12 * 11
    assert training["images"] == 12 * 344
    assert training["seconds"] > 0
    assert training["images_per_second"] == pytest.approx(training["images"] / training["seconds"], rel=0.05)


def test_loads_identically_in_zoo_and_plain_timm(paco: Release, moco: Release) -> None:
    for release in (paco, moco):
        images = digit_images(release)
        with torch.no_grad():
            ours = zoo.load(release.path).eval()(images)
            theirs = plain_timm(release.path, num_classes=0)(images)
        assert torch.equal(ours, theirs)
        assert ours.shape == (32, 64)


def test_released_classifier_is_the_learned_centers(paco: Release) -> None:
    images = digit_images(paco)
    with torch.no_grad():
        features = zoo.load(paco.path).eval()(images)
        logits = zoo.load(paco.path, head="centers").eval()(images)
        plain = plain_timm(paco.path)(images)
    centers = zoo.open(paco.path).centers
    torch.testing.assert_close(logits, features @ centers.weight.T + centers.bias)
    assert torch.equal(logits, plain)
    assert centers.class_counts.tolist() == [125, 80, 52, 33, 21, 14, 9, 5, 3, 2]


def test_recorded_accuracy_is_that_of_the_loaded_classifier_on_the_test_images(paco: Release) -> None:
    """The number in metrics.json, computed again by hand from files alone."""
    dataset = open_dataset(Recipe.load(PACO).data, "test", None)
    images, labels = digit_images(paco, len(dataset)), torch.tensor(dataset.labels)
    with torch.no_grad():
        predictions = zoo.load(paco.path, head="centers").eval()(images).argmax(dim=1)
    recorded = next(e for e in paco.metrics["evaluations"] if e["protocol"] == "classifier")["metrics"]
    assert recorded["accuracy"] == pytest.approx(
        100 * (predictions == labels).float().mean().item(), abs=1e-4
    )
    recalls = [100 * (predictions[labels == c] == c).float().mean().item() for c in range(10)]
    assert recorded["per_class"] == pytest.approx(recalls, abs=1e-3)
    assert recorded["balanced_accuracy"] == pytest.approx(sum(recalls) / 10, abs=1e-3)
    assert recorded["many"] == pytest.approx(recalls[0], abs=1e-3)  # 125 images
    assert recorded["medium"] == pytest.approx(sum(recalls[1:5]) / 4, abs=1e-3)  # 80, 52, 33, 21
    assert recorded["few"] == pytest.approx(sum(recalls[5:]) / 5, abs=1e-3)  # 14 ... 2


def test_evaluate_again_gives_what_was_recorded_and_replaces_it(copied: Path) -> None:
    release = zoo.open(copied)
    before = release.metrics["evaluations"]
    for entry in before:
        again = zoo.evaluate(copied, entry["protocol"])
        assert again["metrics"] == entry["metrics"]
        assert again["data"] == "digits, long tail 50"
        assert f"{entry['metrics']['accuracy']:.2f}" in release.card
    assert len(release.metrics["evaluations"]) == len(before)
    zoo.evaluate(copied, "knn", k=3)
    assert len(release.metrics["evaluations"]) == len(before) + 1
    assert "k: 3" in release.card
    zoo.evaluate(copied, "knn", k=7, save=False)
    assert len(release.metrics["evaluations"]) == len(before) + 1


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
    class OfDino(nn.Sequential):
        """Keeps the size of its images as a number, where timm has a pair."""

        def __init__(self) -> None:
            super().__init__(nn.Flatten())
            self[0].img_size = 16

        @property
        def patch_embed(self) -> nn.Module:
            return self[0]

    with pytest.warns(zoo.errors.ZooWarning, match='OfDino has no "pretrained_cfg".*input_size=16, crop_pct'):
        entry = zoo.evaluate(OfDino(), "knn", FEW)
    assert entry["preprocess"]["mean"] == (0.485, 0.456, 0.406)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "imagenet",
            "preprocess: found a str, expected a zoo.release.Preprocess or a mapping with its fields",
        ),
        (PIXELS | {"size": 8}, 'preprocess: unknown key "size"'),
        ({key: value for key, value in PIXELS.items() if key != "std"}, 'preprocess: missing key "std"'),
        (PIXELS | {"interpolation": "bicubik"}, 'Did you mean "bicubic"'),
        (PIXELS | {"std": (0.5, 0.5, 0.0)}, 'preprocess: "std.2": found 0.0'),
        (PIXELS | {"crop_pct": 1e-5}, 'preprocess: "crop_pct": found 1e-05'),
        (PIXELS | {"input_size": 5000}, 'preprocess: "input_size": found 5000'),
    ],
)
def test_evaluate_names_a_mistake_in_preprocess(given: Any, expected: str) -> None:
    with pytest.raises(zoo.ZooError) as error:
        zoo.evaluate(nn.Flatten(), "knn", FEW, preprocess=given)
    assert expected in str(error.value)


def small_vit(**arguments: int) -> nn.Module:
    sizes = {
        "image_size": 16,
        "patch_size": 8,
        "num_layers": 1,
        "num_heads": 2,
        "hidden_dim": 8,
        "mlp_dim": 8,
    }
    return torchvision.models.VisionTransformer(**sizes | arguments)


def test_evaluate_refuses_torchvisions_classifiers_and_takes_them_without() -> None:
    at_16 = PIXELS | {"input_size": 16}

    def classifier(outputs: int) -> nn.Module:
        last = nn.Sequential(nn.ReLU(), nn.Linear(768, outputs))
        return nn.Sequential(OrderedDict(pool=nn.Flatten(), classifier=last))

    for place, model in {
        "fc": torchvision.models.resnet18(),
        "classifier[1]": classifier(1000),
        "heads.head": small_vit(),
    }.items():
        with pytest.raises(
            zoo.ZooError, match=rf"take its last layer off, model\.{re.escape(place)} = torch\.nn\.Id"
        ):
            zoo.evaluate(model, "knn", FEW, preprocess=at_16)
    # of other widths it may be a projection, called so by whoever made it
    with pytest.warns(
        zoo.errors.ZooWarning, match=r"measured, 4 numbers; if they .* model\.classifier\[1\] ="
    ):
        assert zoo.evaluate(classifier(4), "knn", FEW, preprocess=at_16)["metrics"]["accuracy"] > 5
    headless = small_vit()
    headless.heads = nn.Identity()  # its num_classes stays 1000
    with pytest.warns(zoo.errors.ZooWarning, match="input_size=16"):
        assert zoo.evaluate(headless, "knn", FEW)["metrics"]["accuracy"] > 5


def test_evaluate_finds_timms_classifier_inside_of_a_model_and_sees_where_it_was_taken_off() -> None:
    inner = timm.create_model("resnet10t", num_classes=5)
    with pytest.raises(zoo.ZooError, match=r"call model\.get_submodule\('1'\)\.reset_classifier\(0\)"):
        zoo.evaluate(nn.Sequential(nn.Identity(), inner), "knn", FEW, preprocess=PIXELS)
    by_hand = timm.create_model("resnet10t", num_classes=512)
    by_hand.fc = nn.Identity()
    assert zoo.evaluate(by_hand, "knn", FEW, preprocess=PIXELS)["metrics"]["accuracy"] > 5


def test_evaluate_says_what_it_cannot_take_of_a_pretrained_cfg() -> None:
    model = nn.Flatten()
    whole = {"input_size": (3, 8, 8), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3}
    for wrong, expected in (
        ({"input_size": 8}, "model: its pretrained_cfg is none of timm's"),
        ({**whole, "interpolation": "random"}, "\"interpolation\": found 'random'"),
        ({**whole, "mean": (0.5,)}, 'model: pretrained_cfg: "mean"'),
    ):
        model.pretrained_cfg = wrong  # type: ignore[assignment]
        with pytest.raises(zoo.ZooError, match=re.escape(expected)):
            zoo.evaluate(model, "knn", FEW)
    model.pretrained_cfg = {**whole, "crop_mode": "squash"}  # type: ignore[assignment]
    with pytest.warns(
        zoo.errors.ZooWarning, match='crop_mode "squash"; here images are cropped at their center'
    ):
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
            lambda paco: timm.create_model("levit_128", num_classes=0, img_size=32),
            "takes no 224 x 224 images",
        ),
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


def test_finetune_starts_from_the_release_with_a_head_of_its_centers(paco: Release, tmp_path: Path) -> None:
    changes = [
        "training.epochs=1",
        "schedule.warmup_epochs=0",
        "optimizer.lr=0.0",
        "init={release: x, head: centers}",
    ]
    tuned = zoo.finetune(
        "cifar_resnet20.ce_digits_lt50", init=paco.path, out=tmp_path / "ft", overrides=changes
    )
    # with a learning rate of 0 the parameters are exactly those it started from
    before, after = (dict(zoo.load(p, head="centers").named_parameters()) for p in (paco.path, tuned.path))
    for name, value in before.items():
        assert torch.equal(value, after[name]), name
    assert tuned.recipe["init"] == {"release": str(paco.path), "head": "centers", "freeze": []}


def test_finetune_refuses_another_architecture(paco: Release, tmp_path: Path) -> None:
    with pytest.raises(zoo.ZooError, match=r"is a cifar_resnet20, but backbone\.arch is cifar_resnet32"):
        zoo.finetune(
            "cifar_resnet20.ce_digits_lt50",
            init=paco.path,
            out=tmp_path,
            overrides=["backbone.arch=cifar_resnet32", "name=cifar_resnet32.x"],
        )


def test_a_finished_release_is_not_overwritten_and_resume_returns_it(copied: Path) -> None:
    recipe = Recipe.from_yaml((copied / "recipe.yaml").read_text(), "r")
    with pytest.raises(zoo.ZooError, match="holds a finished release"):
        zoo.pretrain(recipe, out=copied)
    before = (copied / "model.safetensors").stat().st_mtime_ns
    for same in (recipe, recipe.model_copy(update={"description": "another"})):
        assert zoo.pretrain(same, out=copied, resume=True).path == copied
    assert (copied / "model.safetensors").stat().st_mtime_ns == before


def test_an_unfinished_training_is_called_so_with_what_to_do(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = zoo.open(copied).metrics["training"]["steps"]
    (copied / "config.json").unlink()
    (newest,) = (copied / "run" / "checkpoints").glob(f"step-{steps:09d}.pt")
    newest.rename(newest.with_name("step-000000007.pt"))
    for older in set(newest.parent.glob("*.pt")) - {newest.with_name("step-000000007.pt")}:
        older.unlink()
    with (copied / "run" / "metrics.jsonl").open("a") as rows:
        rows.write('{"step": 9')  # a crash
    monkeypatch.chdir(copied.parent.parent)
    could_be_of_the_hub = f"{copied.parent.name}/{copied.name}"
    for name in (could_be_of_the_hub, copied, copied / "run"):
        with pytest.raises(zoo.ZooError) as caught:
            zoo.open(name)
        said = f"{name}: no release yet, but an unfinished training of {PACO}"
        assert str(caught.value).startswith(said)
        assert f'--resume continues it; "zoo snapshot {name}"' in str(caught.value)
    shutil.rmtree(copied / "run")  # what is left may be a damaged release
    with pytest.raises(zoo.ZooError, match=r"no release, config\.json is missing"):
        zoo.load(copied)


def test_a_finished_training_that_is_measured_again_keeps_its_date_and_time(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    recipe = Recipe.from_yaml((copied / "recipe.yaml").read_text(), "r")
    before = zoo.open(copied).metrics["training"]
    (tmp_path / "again").mkdir()
    (copied / "run").rename(tmp_path / "again" / "run")
    later = time.time() + 86_400
    monkeypatch.setattr("zoo.training.loop.time.time", lambda: later)
    after = zoo.pretrain(recipe, out=tmp_path / "again", resume=True).metrics["training"]
    assert {key: after[key] for key in ("date", "seconds", "steps")} == {
        key: before[key] for key in ("date", "seconds", "steps")
    }


def test_a_backbone_that_cannot_take_the_images_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(zoo.ZooError, match="img_size"):
        zoo.pretrain(
            PACO,
            out=tmp_path / "x",
            overrides=["backbone.arch=vit_tiny_patch16_224", "name=vit_tiny_patch16_224.x"],
        )
    with pytest.raises(zoo.ZooError, match="Did you mean"):
        zoo.pretrain(
            PACO, out=tmp_path / "x", overrides=["backbone.arch=cifar_resnet21", "name=cifar_resnet21.x"]
        )
    assert not (tmp_path / "x").exists()


@pytest.mark.usefixtures("no_pictures")
@reads_folders
def test_a_stock_timm_architecture_trains_and_plain_timm_loads_it_without_zoo(tmp_path: Path) -> None:
    import subprocess
    import sys

    args = "{img_size: 8, patch_size: 4, embed_dim: 32, depth: 2, num_heads: 2}"
    out = tmp_path / "vit"
    zoo.pretrain(
        PACO,
        out=out,
        overrides=[
            "name=vit_tiny_patch16_224.paco_digits",
            "backbone.arch=vit_tiny_patch16_224",
            f"backbone.args={args}",
            "training.epochs=1",
            "schedule.warmup_epochs=0",
        ],
    )
    images = torch.randn(3, 3, 8, 8)
    expected = zoo.load(out, head="centers").eval()(images)
    code = (
        "import sys, timm, torch; "
        f"m = timm.create_model('local-dir:{out}', pretrained=True).eval(); "
        "assert 'zoo' not in sys.modules; "
        "torch.save(m(torch.load(sys.argv[1])), sys.argv[2])"
    )
    torch.save(images, tmp_path / "in.pt")
    subprocess.run([sys.executable, "-c", code, tmp_path / "in.pt", tmp_path / "out.pt"], check=True, cwd="/")
    assert torch.equal(torch.load(tmp_path / "out.pt"), expected)


def picture_folder(root: Path, *, bad: str | None = None) -> Path:
    """Write two classes of 8 x 8 pictures, 12 to train and 6 to test each; `bad` names one to cut short."""
    import numpy as np
    from PIL import Image

    random = np.random.RandomState(0)
    for split, count in (("train", 12), ("val", 6)):
        for c, name in enumerate(("dark", "light")):
            (root / split / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = random.randint(0, 120, (8, 8, 3)) + 120 * c
                Image.fromarray(pixels.astype("uint8")).save(root / split / name / f"{i:02d}.png")
    if bad is not None:
        (root / bad).write_bytes((root / bad).read_bytes()[:40])
    return root


FOLDER = (
    "training.epochs=2",
    "schedule.warmup_epochs=1",
    "training.batch_size=8",
    "data={source: {kind: folder}}",
)


FLAT = (*FOLDER, "data={source: {kind: folder}}", "training.observe_every=1", "training.device=cpu")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A folder of images without classes."""
    data = tmp_path / "flat"
    (data / "train").mkdir(parents=True)
    for number in range(20):
        photo(10, 8 + number % 3, number).save(data / "train" / f"{number}.png")
    return data


@pytest.mark.parametrize("backend", ["tensor", "stream", "torchvision"])
def test_images_without_classes_are_enough_for_moco(flat: Path, tmp_path: Path, backend: str) -> None:
    crop = "[{op: random_resized_crop, size: 8}]"
    views = f"views={{backend: {backend}, train: [{crop}, {crop}], eval: {{size: 8}}}}"
    changes = [
        *FLAT,
        views,
        "data.image_size=8",
        "evaluation=[]",
        "objective.feature_transform.start_epoch=1",
    ]
    release = zoo.pretrain(MOCO, out=tmp_path / "out", data=flat, overrides=changes)
    assert release.class_names == ()
    assert "20 images without classes" in release.card and "moco, no classes" in repr(release)
    assert (
        (result := from_release(release, "out")).classes == result.largest == 0
    )  # tables of results take it
    assert {"curves.png", "scores.png"} <= {file.name for file in release.path.iterdir()}


def test_what_needs_classes_refuses_images_without(flat: Path, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"have no classes.*--set 'evaluation=\[\]'"):
        zoo.pretrain("cifar_resnet20.simclr_digits_lt50", out=tmp_path / "out", data=flat, overrides=FLAT)
    for recipe in (PACO, "cifar_resnet20.sup_con_digits_lt50"):
        with pytest.raises(ZooError, match="have no labels, which are needed here"):
            zoo.pretrain(recipe, out=tmp_path / "out", data=flat, overrides=[*FLAT, "evaluation=[]"])


def test_an_unreadable_training_image_is_named_before_any_step(tmp_path: Path) -> None:
    data = picture_folder(tmp_path / "pictures", bad="train/dark/03.png")
    with pytest.raises(ZooError, match=r'image "dark/03\.png" cannot be read'):
        zoo.pretrain(PACO, out=tmp_path / "out", data=data, overrides=FOLDER)
    assert not list((tmp_path / "out").rglob("step*"))


@pytest.mark.usefixtures("no_pictures")
def test_an_unreadable_test_image_is_named_and_the_training_can_be_finished_after_mending(
    tmp_path: Path,
) -> None:
    data = picture_folder(tmp_path / "pictures", bad="val/light/02.png")
    with pytest.raises(zoo.ZooError, match=r"light/02\.png.*training is done and saved.*--resume"):
        zoo.pretrain(PACO, out=tmp_path / "out", data=data, overrides=FOLDER)
    picture_folder(data)
    release = zoo.pretrain(PACO, out=tmp_path / "out", data=data, overrides=FOLDER, resume=True)
    assert release.metrics["evaluations"]


LONG_TAIL, FT = "cifar_resnet32.paco_cifar100_lt100", "cifar_resnet32.moco_v2_ft_cifar100_e25"
OWN = "data.source={kind: folder}"
FILES = "data.source={kind: parquet, train: train-*.parquet, test: test-*.parquet, image: img, label: %s}"
TO_SIMCLR = (
    "objective={name: simclr, dim: 32, head_layers: 2, head_hidden: 64, head_batchnorm: true, tau: 0.1}"
)
CE = "cifar_resnet20.ce_digits_lt50"
BALANCED = "cifar_resnet32.balanced_softmax_cifar100_lt100"
LDAM = "{name: ldam, max_margin: 0.5, scale: 30.0, reweight_from: 0.8, beta: 0.999}"
NO_TAIL, NO_FT = "data.long_tail=null", "objective.feature_transform=null"


@pytest.mark.parametrize(
    ("base", "changes", "changed"),
    [
        (LONG_TAIL, [OWN, NO_TAIL], True),
        (LONG_TAIL, ["data.long_tail.imbalance=20"], True),
        (LONG_TAIL, [FILES % "coarse_label"], True),
        (LONG_TAIL, ["data.subset={per_class: 4}"], True),
        (FT, [NO_FT], True),
        (MOCO, [TO_SIMCLR], True),
        (BALANCED, [f"objective.loss={LDAM}", "objective.head=cosine"], True),
        (BALANCED, ["objective.loss=cross_entropy"], True),
        (CE, ["method={name: crt, epochs: 1, lr: 0.1}"], True),
        (MOCO, ["objective.loss={name: hard_contrastive, keep: 0.5}"], True),
        ("cifar_resnet20.pico_digits_q05", ["data.partial_labels.rate=0.1"], True),
        (LONG_TAIL, [FILES % "fine_label"], False),  # CIFAR-100 all the same
        (LONG_TAIL, ["data.source.download=false", "optimizer.lr=1"], False),
        ("resnet152.paco_places_lt", ["data.source.train=moved/train.txt"], False),
    ],
)
def test_a_recipe_of_other_data_or_another_objective_is_called_changed(
    base: str, changes: list[str], changed: bool
) -> None:
    planned = plan_pretraining(base, overrides=changes)
    assert planned.name == (f"{base}_changed" if changed else base)
    assert plan_pretraining(planned, overrides=["data.subset={per_class: 3}"]).name == f"{base}_changed"
    named = "cifar_resnet32.mine" if "32" in base else f"{base.partition('.')[0]}.mine"
    assert plan_pretraining(base, overrides=[*changes, f"name={named}"]).name == named


def test_the_default_folder_is_that_of_the_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(pretraining, "_pretrain", lambda *given, **_: begun.append(given) or "made")
    for base in (PACO, Recipe.load(PACO)):
        zoo.pretrain(base, data=picture_folder(tmp_path / "own"), overrides=[OWN, NO_TAIL])
    assert [(given[0].name, given[2]) for given in begun] == [
        (f"{PACO}_changed", Path(f"runs/{PACO}_changed"))
    ] * 2


def test_few_test_images_make_a_release_without_a_map(tmp_path: Path) -> None:
    data = picture_folder(tmp_path / "pictures")
    for image in (data / "val").glob("*/0[1-5].png"):
        image.unlink()  # one of each class is left
    with pytest.warns(UserWarning, match="2 test images are too few for a map"):
        release = zoo.pretrain(PACO, out=tmp_path / "out", data=data, overrides=FOLDER)
    assert {e["metrics"]["test_images"] for e in release.metrics["evaluations"]} == {2}
    pictures = {file.stem for file in release.path.glob("*.png")}
    assert "features" not in pictures
    assert {"curves", "centers", "accuracy"} <= pictures
    assert "features.png" not in release.card


def test_without_test_images_a_training_that_measures_nothing_makes_a_release(tmp_path: Path) -> None:
    data = picture_folder(tmp_path / "pictures")
    shutil.rmtree(data / "val")
    with pytest.raises(zoo.ZooError, match='no test folder "val"'):
        zoo.pretrain(PACO, out=tmp_path / "out", data=data, overrides=FOLDER)
    assert not (tmp_path / "out").exists()
    for base, method in ((PACO, "null"), ("cifar_resnet20.ce_digits_lt50", "{name: tau_normalized}")):
        changes = [*FOLDER, "evaluation=[]", f"method={method}"]
        with pytest.warns(UserWarning, match=r'no map of test features: folder: no test folder "val"'):
            release = zoo.pretrain(base, out=tmp_path / base, data=data, overrides=changes)
        assert release.metrics["evaluations"] == []
        assert (release.path / "curves.png").is_file() and not (release.path / "features.png").exists()
    with pytest.raises(zoo.ZooError, match='no test folder "val"'):
        zoo.evaluate(release, "knn", data)


def test_centers_of_other_classes_are_refused(paco: Release, tmp_path: Path) -> None:
    data = picture_folder(tmp_path / "pictures")
    with pytest.raises(zoo.ZooError, match=r"found 2 classes \(dark, light"):
        zoo.evaluate(paco, "classifier", f"folder:{data}")
    with pytest.raises(zoo.ZooError, match=r"are of other classes than the data"):
        zoo.finetune(
            "cifar_resnet20.ce_digits_lt50",
            init=paco.path,
            head="centers",
            out=tmp_path / "o",
            data=data,
            overrides=FOLDER,
        )


@pytest.mark.usefixtures("no_pictures")
def test_finetuning_keeps_the_arguments_that_the_release_was_made_with(tmp_path: Path) -> None:
    args = "{img_size: 8, patch_size: 4, embed_dim: 32, depth: 1, num_heads: 2}"
    vit = (
        "name=vit_tiny_patch16_224.x",
        "backbone.arch=vit_tiny_patch16_224",
        "training.epochs=1",
        "schedule.warmup_epochs=0",
    )
    first = zoo.pretrain(PACO, out=tmp_path / "a", overrides=[*vit, f"backbone.args={args}", "evaluation=[]"])
    ce = "cifar_resnet20.ce_digits_lt50"
    with pytest.raises(zoo.ZooError, match=r"was made with backbone\.args .*patch_size.*write the same"):
        zoo.finetune(ce, init=first.path, out=tmp_path / "b", overrides=vit)
    tuned = zoo.finetune(
        ce, init=first.path, out=tmp_path / "c", overrides=[*vit, f"backbone.args={args}", "evaluation=[]"]
    )
    assert tuned.load(head="centers").eval()(torch.randn(1, 3, 8, 8)).shape == (1, 10)


def test_overrides_apply_to_a_recipe_object_too(tmp_path: Path) -> None:
    with pytest.raises(zoo.ZooError, match='unknown key "nonsense"'):
        zoo.pretrain(Recipe.load(PACO), out=tmp_path, overrides=["nonsense.key=1"])
    with pytest.raises(zoo.ZooError, match="expected a list"):
        zoo.pretrain(PACO, out=tmp_path, overrides="training.epochs=1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"features_only": True, "head": "centers"}, "feature maps without a head"),
        ({"device": "nowhere"}, "device: found 'nowhere'"),
        ({"dtype": "float16"}, "dtype: found 'float16'"),
        ({"dtype": torch.int8}, "dtype: found torch.int8"),
        ({"num_classes": "7"}, "num_classes: found '7'"),
        ({"num_classes": -1}, "num_classes: found -1"),
        ({"pretrained": False}, 'timm.create_model("cifar_resnet20", num_classes=0)'),
        ({"checkpoint_path": "x"}, "checkpoint_path: weights and architecture are those of"),
        ({"pretrained_cfg_overlay": {"file": "x"}}, "pretrained_cfg_overlay: weights and arch"),
        ({"model_name": "resnet18"}, "model_name: weights and arch"),
    ],
)
def test_load_names_bad_arguments(paco: Release, arguments: dict, expected: str) -> None:
    with pytest.raises(zoo.ZooError) as error:
        zoo.load(paco.path, **arguments)
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


@pytest.mark.usefixtures("no_pictures")
def test_channels_last_training_with_large_features_is_released(tmp_path: Path) -> None:
    changes = [
        "name=efficientnet_b0.x",
        "backbone.arch=efficientnet_b0",
        "training.epochs=1",
        "schedule.warmup_epochs=0",
    ]
    changes += [
        "evaluation=[]",
        "views.eval.size=32",
        "views.train.0.0={op: pad_crop, size: 32, padding: 12}",
    ]
    release = zoo.pretrain("cifar_resnet20.ce_digits_lt50", out=tmp_path / "e", overrides=changes)
    assert release.load(head="centers").num_classes == 10


def test_the_record_of_the_training_and_its_pictures_are_in_release_and_card(
    paco: Release, moco: Release
) -> None:
    for release, pictures in ((paco, 6), (moco, 5)):  # without centers
        history = release.history
        assert history is not None
        rows = RunFolder(release.path / "run").rows()
        steps = sorted({row["step"] for row in rows})
        assert history["columns"]["step"] == steps
        last = {row["step"]: row["loss"] for row in rows if "loss" in row}[steps[-1]]
        assert history["columns"]["loss"][-1] == pytest.approx(last, rel=1e-5)
        assert history["classes"], "classes.jsonl comes with it"
        assert len(history["classes"][-1]["images"]) == 10
        shown = re.findall(r"^!\[.+\]\((\w+)\.png\)$", release.card, re.MULTILINE)
        assert sorted(f"{name}.png" for name in shown) == sorted(f.name for f in release.path.glob("*.png"))
        assert len(shown) == pictures
        assert shown[:3] == ["curves", "scores", "balance"]
