"""From a recipe to a release and back: what a user of the Python API meets."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from tests.data_fixtures import photo
from zoo.data import open_dataset
from zoo.errors import ZooError
from zoo.recipe import Recipe
from zoo.recipe.planning import plan_pretraining
from zoo.release import Release

PACO = "cifar_resnet20.paco_digits_lt50"
MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"
CE = "cifar_resnet20.ce_digits_lt50"


def test_a_recipe_becomes_a_release_folder_with_everything_in_it(paco: Release) -> None:
    pictures = ("accuracy", "balance", "centers", "curves", "features", "scores")
    texts = {"config.json", "recipe.yaml", "metrics.json", "history.json", "README.md", "run"}
    tensors = {"model.safetensors", "centers.safetensors"}
    assert {p.name for p in paco.path.iterdir()} == texts | tensors | {f"{name}.png" for name in pictures}
    paco.verify()
    released = Recipe.from_yaml((paco.path / "recipe.yaml").read_text(), "released")
    assert released.training.epochs == 12  # the override is recorded
    assert paco.config["zoo"]["recipe_sha256"] == hashlib.sha256(released.to_yaml().encode()).hexdigest()
    training = paco.metrics["training"]
    assert (training["steps"], training["images"]) == (12 * 11, 12 * 344)
    assert training["images_per_second"] == pytest.approx(training["images"] / training["seconds"], rel=0.05)


def test_recorded_accuracy_is_that_of_the_loaded_classifier_on_the_test_images(paco: Release) -> None:
    """The number in metrics.json, computed again by hand from files alone."""
    dataset, transform = open_dataset(Recipe.load(PACO).data, "test", None), paco.transform()
    images = torch.stack([transform(dataset.image(i)) for i in range(len(dataset))])
    labels = torch.tensor(dataset.labels)
    with torch.no_grad():
        predictions = zoo.load(paco.path, head="centers").eval()(images).argmax(dim=1)
    recorded = next(e for e in paco.metrics["evaluations"] if e["protocol"] == "classifier")["metrics"]
    right = 100 * (predictions == labels).float()
    assert recorded["accuracy"] == pytest.approx(right.mean().item(), abs=1e-4)
    recalls = [right[labels == c].mean().item() for c in range(10)]
    assert recorded["per_class"] == pytest.approx(recalls, abs=1e-3)
    assert recorded["medium"] == pytest.approx(sum(recalls[1:5]) / 4, abs=1e-3)  # 80, 52, 33, 21 images


def test_finetune_starts_from_the_release_with_a_head_of_its_centers(paco: Release, tmp_path: Path) -> None:
    changes = ["training.epochs=1", "schedule.warmup_epochs=0", "optimizer.lr=0.0"]
    tuned = zoo.finetune(CE, init=paco.path, head="centers", out=tmp_path / "ft", overrides=changes)
    # with a learning rate of 0 the parameters are exactly those it started from
    before, after = (dict(zoo.load(p, head="centers").named_parameters()) for p in (paco.path, tuned.path))
    for name, value in before.items():
        assert torch.equal(value, after[name]), name
    assert tuned.recipe["init"] == {"release": str(paco.path), "head": "centers"}


def test_a_finished_release_is_not_overwritten_and_resume_returns_it(copied: Path) -> None:
    recipe = Recipe.from_yaml((copied / "recipe.yaml").read_text(), "r")
    with pytest.raises(zoo.ZooError, match="holds a finished release"):
        zoo.pretrain(recipe, out=copied)
    before = (copied / "model.safetensors").stat().st_mtime_ns
    for same in (recipe, recipe.model_copy(update={"description": "another"})):
        assert zoo.pretrain(same, out=copied, resume=True).path == copied
    assert (copied / "model.safetensors").stat().st_mtime_ns == before
    (copied / "recipe.yaml").write_text("name: converted, so without a training\n")
    with pytest.raises(zoo.ZooError, match="holds a finished release"):
        zoo.pretrain(recipe, out=copied, resume=True)


def picture_folder(root: Path, *, bad: str | None = None) -> Path:
    """Write two classes of 8 x 8 pictures, 12 to train and 6 to test each; `bad` names one to cut short."""
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


def pretrain(recipe: str, out: Path, data: Path, *more: str, **options: bool) -> Release:
    """Train for two epochs on a folder."""
    changes = ("training.epochs=2", "schedule.warmup_epochs=1", "training.batch_size=8")
    overrides = (*changes, "data={source: {kind: folder}}", *more)
    return zoo.pretrain(recipe, out=out, data=data, overrides=overrides, **options)


def test_what_needs_classes_refuses_images_without(tmp_path: Path) -> None:
    (tmp_path / "flat" / "train").mkdir(parents=True)
    for number in range(20):
        photo(10, 8 + number % 3, number).save(tmp_path / "flat" / "train" / f"{number}.png")
    with pytest.raises(ZooError, match=r"have no classes.*--set 'evaluation=\[\]'"):
        pretrain("cifar_resnet20.simclr_digits_lt50", tmp_path / "out", tmp_path / "flat")
    for recipe in (PACO, "cifar_resnet20.sup_con_digits_lt50"):
        with pytest.raises(ZooError, match="have no labels"):
            pretrain(recipe, tmp_path / "out", tmp_path / "flat", "evaluation=[]")


@pytest.mark.usefixtures("no_pictures")
def test_an_unreadable_image_is_named_and_a_training_can_be_finished_after_mending(tmp_path: Path) -> None:
    for part, bad in (("train", "dark/03.png"), ("val", "light/02.png")):
        data = picture_folder(tmp_path / "pictures", bad=f"{part}/{bad}")
        with pytest.raises(ZooError, match=f'image "{bad}" cannot be read'):
            pretrain(PACO, tmp_path / "out", data)
    picture_folder(data)
    release = pretrain(PACO, tmp_path / "out", data, resume=True)
    assert release.metrics["evaluations"]


LONG_TAIL, FT = "cifar_resnet32.paco_cifar100_lt100", "cifar_resnet32.moco_v2_ft_cifar100_e25"
OWN, NO_TAIL = "data.source={kind: folder}", "data.long_tail=null"
FILES = "data.source={kind: parquet, train: train-*.parquet, test: test-*.parquet, image: img, label: %s}"


@pytest.mark.parametrize(
    ("base", "change", "changed"),
    [
        (CE, OWN, True),
        (LONG_TAIL, FILES % "coarse_label", True),
        (FT, "objective.feature_transform=null", True),
        (MOCO, "objective={name: simclr, dim: 32, tau: 0.1}", True),
        (CE, "method=crt", True),
        ("cifar_resnet20.pico_digits_q05", "data.partial_labels.rate=0.1", True),
        (LONG_TAIL, "optimizer.lr=1", False),
    ],
)
def test_a_recipe_of_other_data_or_another_objective_is_called_changed(base, change, changed) -> None:
    planned, _ = plan_pretraining(base, overrides=[change])
    assert planned.name == (f"{base}_changed" if changed else base)
    again, _ = plan_pretraining(planned, overrides=["data.subset={per_class: 3}"])
    assert again.name == f"{base}_changed"
    named = f"{base.partition('.')[0]}.mine"
    assert plan_pretraining(base, overrides=[change, f"name={named}"])[0].name == named


def test_without_test_images_a_training_that_measures_nothing_makes_a_release(tmp_path: Path) -> None:
    data = picture_folder(tmp_path / "pictures")
    shutil.rmtree(data / "val")
    with pytest.raises(zoo.ZooError, match=r'no test folder ".*val"'):
        pretrain(PACO, tmp_path / "out", data)
    assert not (tmp_path / "out").exists()
    release = pretrain(PACO, tmp_path / "out", data, "evaluation=[]")
    assert release.metrics["evaluations"] == []
    assert (release.path / "curves.png").is_file() and not (release.path / "features.png").exists()
    with pytest.raises(zoo.ZooError, match=r'no test folder ".*val"'):
        zoo.evaluate(release, "knn", data)
