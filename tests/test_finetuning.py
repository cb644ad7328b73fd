"""`zoo finetune`: with a recipe or one made for the release, on the recipe's data or any other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import zoo
from tests import warm
from tests.data_fixtures import photo
from zoo.api import plan_finetuning
from zoo.errors import DataError, RecipeError, ZooError
from zoo.recipe import Recipe

MOCO = "shipped:cifar_resnet20.moco_v2_ft_digits_lt50"
PACO = "shipped:cifar_resnet20.paco_digits_lt50"
CE = "cifar_resnet20.ce_digits_lt50"
ONE_THREAD = ("training.threads=1", "training.device=cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tree of images of two classes and of several sizes."""
    for split, count in (("train", 5), ("val", 2)):
        for c, name in enumerate(("ant", "bee")):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                photo(12 + i, 14, 10 * c + i).save(tmp_path / split / name / f"{i}.png")
    return tmp_path


def test_a_recipe_made_for_a_release_takes_its_architecture_view_and_normalisation() -> None:
    plan = plan_finetuning(None, init=MOCO, data="digits?imbalance=50&fraction=0.1")
    recipe, release = plan.recipe, zoo.open(MOCO)
    assert recipe.name == "cifar_resnet20.finetuned_digits_lt50_10pct"
    assert plan.out == Path("runs/cifar_resnet20.finetuned_digits_lt50_10pct")
    assert recipe.backbone.arch == release.config["architecture"]
    assert recipe.init is not None
    assert (recipe.init.release, recipe.init.head) == (MOCO, "fresh")
    assert (recipe.data.mean, recipe.data.std) == (
        list(release.preprocess.mean),
        list(release.preprocess.std),
    )
    assert recipe.views.eval.size == release.preprocess.input_size
    assert [op.op for op in recipe.views.train[0]] == ["pad_crop"], "a mirrored digit is none"
    assert recipe.data.long_tail is not None
    assert recipe.data.subset is not None
    assert (recipe.optimizer.name, recipe.optimizer.layer_decay) == ("momentum", None)
    assert Recipe.from_yaml(recipe.to_yaml(), "again") == recipe


def test_without_recipe_and_data_it_is_refused() -> None:
    with pytest.raises(DataError, match="expected one of them"):
        zoo.finetune(init=MOCO)
    recipe = plan_finetuning(None, init=MOCO).recipe  # a comparison is on the release's own
    assert recipe.data.source.kind == "digits"
    assert recipe.data.long_tail is not None and recipe.data.long_tail.imbalance == 50


@pytest.mark.parametrize(
    ("images", "epochs", "batch"),
    [(1, 50, 10), (10, 50, 64), (125, 31, 64)],  # 10, 100 and 1,250 images: 600 steps, at most 50 epochs
)
def test_small_data_get_more_epochs(images: int, epochs: int, batch: int) -> None:
    training = plan_finetuning(None, init=MOCO, data=f"digits?per_class={images}").recipe.training
    assert (training.epochs, training.batch_size) == (epochs, batch)


def test_a_plain_timm_start_gives_size_and_normalisation_and_a_transformer_layer_decay(
    folder: Path, tmp_path: Path
) -> None:
    model = timm.create_model("test_vit", pretrained=False)
    timm.models.save_for_hf(model, tmp_path / "start", safe_serialization=True)
    recipe = plan_finetuning(None, init=tmp_path / "start", data=f"folder:{folder}").recipe
    cfg = model.pretrained_cfg
    assert recipe.views.eval.size == cfg["input_size"][-1] == 160
    assert recipe.data.mean == list(cfg["mean"])
    assert (recipe.optimizer.name, recipe.optimizer.layer_decay) == ("adamw", 0.75)
    assert [op.op for op in recipe.views.train[0]] == ["random_resized_crop", "horizontal_flip"]
    assert recipe.views.backend == "stream"
    assert recipe.name.startswith("test_vit.finetuned_test_a_plain_timm_start")


def test_a_spec_takes_the_place_of_a_recipes_data_and_nothing_else(folder: Path) -> None:
    recipe = plan_finetuning(CE, init=PACO, data=f"folder:{folder}", overrides=["training.epochs=7"]).recipe
    original = Recipe.load(CE)
    assert recipe.data.source.kind == "folder"
    assert recipe.data.long_tail is None
    assert (recipe.data.mean, recipe.views) == (original.data.mean, original.views)
    assert recipe.optimizer == original.optimizer
    assert recipe.training.epochs == 7
    assert recipe.name.startswith("cifar_resnet20.ce_digits_lt50_")
    assert "ce_digits_lt50 on" in recipe.description
    assert plan_finetuning(CE, init=PACO, data="digits?imbalance=50&max_per_class=125").recipe.name == CE


def test_a_folders_long_name_is_cut_to_what_a_release_can_be_named(folder: Path) -> None:
    long = folder.rename(folder.parent / ("long name " * 12 + "end"))
    for recipe, beginning in ((None, "cifar_resnet20.finetuned_long_name"), (CE, f"{CE}_long_name")):
        name = plan_finetuning(recipe, init=MOCO, data=f"folder:{long}?fraction=0.5").recipe.name
        assert name.startswith(beginning) and len(name) == 96


def test_a_start_in_a_folder_is_described_by_name_and_hash(tmp_path: Path) -> None:
    start = Path(shutil.copytree(zoo.open(MOCO).path, tmp_path / "home alice" / "start"))
    release = zoo.open(start)
    told = f"started from {release.name} (weights of sha256 {release.config['zoo']['weights_sha256'][:12]})"
    for recipe, init in ((None, start), (None, release), (CE, str(start))):
        planned = plan_finetuning(recipe, init=init, data="digits?fraction=0.1").recipe
        assert told in planned.description and "alice" not in planned.description
        assert planned.init is not None and planned.init.release == str(start), "which reproduces it here"
    assert f"started from {MOCO};" in plan_finetuning(None, init=MOCO, data="digits").recipe.description


def test_a_recipe_with_another_start_or_overrides_says_so() -> None:
    def told(recipe: str | None, init: str = MOCO, **options: Any) -> str:
        return plan_finetuning(recipe, init=init, **options).recipe.description

    changes = ["optimizer.lr=0.5", "training.seed=4"]
    assert told(CE) == f"The recipe {CE}, started from {MOCO}."
    assert told(CE, overrides=changes) == f"The recipe {CE}, started from {MOCO}, with optimizer.lr=0.5."
    few = told(CE, data="digits?fraction=0.5", overrides=changes)
    assert few.startswith(f"The recipe {CE} on ")
    assert few.endswith(f", started from {MOCO}, with optimizer.lr=0.5.")
    made = told(None, data="digits")
    assert told(None, data="digits", overrides=["training.epochs=12"]) == made  # it was made for so many
    assert told(None, data="digits", overrides=changes) == f"{made} Changed: optimizer.lr=0.5."
    assert told(CE, overrides=[*changes, "description=Mine."]) == "Mine."
    started = plan_finetuning(CE, init=MOCO).recipe.model_copy(update={"description": "By hand."})
    assert plan_finetuning(started, init=MOCO).recipe.description == "By hand."
    assert plan_finetuning(started, init=PACO).recipe.description == f"The recipe {CE}, started from {PACO}."


def test_overrides_come_after_the_data_and_cannot_replace_the_start() -> None:
    changes = ["data.subset={per_class: 2}", "name=cifar_resnet20.mine", "init.freeze=[conv1.weight]"]
    recipe = plan_finetuning(CE, init=PACO, data="digits", overrides=[*changes[:2]]).recipe
    assert recipe.data.subset is not None
    assert recipe.data.long_tail is None
    assert recipe.name == "cifar_resnet20.mine"
    frozen = plan_finetuning(None, init=PACO, data="digits", head="centers", overrides=[changes[2]]).recipe
    assert frozen.init is not None
    assert (frozen.init.release, frozen.init.head, frozen.init.freeze) == (PACO, "centers", ["conv1.weight"])


def test_what_depends_on_epochs_and_batch_follows_the_overrides_of_them() -> None:
    def made(*overrides: str) -> Recipe:
        return plan_finetuning(None, init=PACO, data="digits?per_class=13", overrides=overrides).recipe

    short = made("training.epochs=1")
    assert (short.schedule.warmup_epochs, short.training.checkpoint_every) == (0, 1)
    assert made("training.epochs=30").schedule.warmup_epochs == 3
    assert made("schedule.warmup_epochs=2", "training.epochs=30").schedule.warmup_epochs == 2
    assert [made(f"training.batch_size={n}").training.drop_last for n in (64, 43)] == [False, True]  # of 130
    for wrong in ("0", "many", "[1]"):
        with pytest.raises(RecipeError, match=r"training\.epochs"):
            made(f"training.epochs={wrong}")


def test_overrides_are_a_list_of_texts_or_a_mapping() -> None:
    made = plan_finetuning(
        CE, init=PACO, overrides={"training.epochs": 7, "data.subset": {"per_class": 2}}
    ).recipe
    assert (
        made
        == plan_finetuning(
            CE, init=PACO, overrides=["training.epochs=7", "data.subset={per_class: 2}"]
        ).recipe
    )
    text = {"name": "cifar_resnet20.mine", "description": "no: é 😀"}
    assert Recipe.load(CE, text).description == text["description"]


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        ("training.epochs=1", 'the text "training.epochs=1"'),
        (5, "5"),
        ([("training.epochs", 1)], r"\('training.epochs', 1\) in the list"),
        ({"training.epochs": {1}}, r'"training.epochs": found \{1\}, expected a plain value'),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        lambda overrides, out: zoo.pretrain(CE, out=out, overrides=overrides),
        lambda overrides, out: zoo.finetune(init=PACO, data="digits", out=out, overrides=overrides),
        lambda overrides, out: zoo.finetune(CE, init=PACO, out=out, overrides=overrides),
        lambda overrides, out: zoo.compare(None, init=PACO, out=out, overrides=overrides),
        lambda overrides, out: Recipe.load(CE, overrides),
    ],
)
def test_other_overrides_are_refused_in_words_of_python(
    overrides: Any, found: str, use: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=rf"^overrides: .*{found}") as error:
        use(overrides, tmp_path / "out")
    assert "--set" not in str(error.value)
    with pytest.raises(ZooError, match=r"vary: found 'objective\.tau=0\.1', expected lists of values"):
        zoo.sweep(CE, out=tmp_path / "out", vary="objective.tau=0.1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("init", "data", "error", "message"),
    [
        ("timm:resnet18.tv_in2k", "digits", ZooError, r'no weights "resnet18.tv_in2k".*Did you mean'),
        (MOCO, "/no/such/folder", DataError, 'no folder or file "/no/such/folder"'),
        (MOCO, "digitz", DataError, 'unknown kind "digitz".*Did you mean "digits"'),
        ("no_such_release", "digits", ZooError, 'no release "no_such_release"'),
    ],
)
def test_what_cannot_be_found_is_said_in_one_line(
    init: str, data: str | None, error: type[ZooError], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_finetuning(None, init=init, data=data)


@pytest.mark.parametrize("recipe", [None, CE])
def test_what_is_no_data_is_refused(recipe: str | None) -> None:
    with pytest.raises(DataError, match=r'^image "image 0": found a int, expected a PIL image'):
        plan_finetuning(recipe, init=MOCO, data=[1])


def test_an_override_of_no_key_is_refused_in_a_recipe_made_for_a_release_too() -> None:
    with pytest.raises(RecipeError, match="unknown key"):
        plan_finetuning(None, init=MOCO, data="digits", overrides=["training.epoch=3"])


def test_the_command_makes_a_release_of_a_folder_of_any_sizes(folder: Path) -> None:
    out = folder / "out"
    command = ["finetune", "--init", PACO, "--data", f"folder:{folder}", "--out", str(out)]
    changes = ["training.epochs=2", "schedule.warmup_epochs=0", "views.workers=0", *ONE_THREAD]
    sets = [word for change in changes for word in ("--set", change)]
    done = warm.run("tests/programs/plain_sweep.py", *command, *sets)
    assert done.returncode == 0, done.stderr[-2000:]
    release = zoo.open(out)
    assert release.class_names == ("ant", "bee")
    assert release.recipe["data"]["image_size"] == 8
    assert release.recipe["init"]["release"] == PACO
    assert zoo.load(out, head="centers")(torch.zeros(1, 3, 8, 8)).shape == (1, 2)


@pytest.mark.usefixtures("no_pictures")
def test_one_label_a_class_on_a_pretrained_encoder_beats_a_start_from_scratch(tmp_path: Path) -> None:
    """PaCo's release has seen the labels of 344 digits; its encoder is worth far more than ten labels."""
    changes = ["training.epochs=30", "schedule.warmup_epochs=3", *ONE_THREAD]
    tuned = zoo.finetune(init=PACO, data="digits?per_class=1", out=tmp_path / "a", overrides=changes)
    recipe = plan_finetuning(None, init=PACO, data="digits?per_class=1", overrides=changes).recipe
    scratch = zoo.pretrain(recipe.model_copy(update={"init": None}), out=tmp_path / "b")
    accuracy, without = (
        release.metrics["evaluations"][0]["metrics"]["balanced_accuracy"] for release in (tuned, scratch)
    )
    assert accuracy > 80, "90 with 60 epochs"
    assert accuracy > without + 25


@pytest.mark.usefixtures("no_pictures")
def test_a_tenth_of_the_labels_on_the_shipped_moco_encoder(tmp_path: Path) -> None:
    """84 and 86 were measured with seeds 0 and 1; the ten classes alone would give 10."""
    changes = ["training.epochs=60", "schedule.warmup_epochs=6", *ONE_THREAD]
    tuned = zoo.finetune(init=MOCO, data="digits?fraction=0.1", out=tmp_path / "a", overrides=changes)
    (entry,) = tuned.metrics["evaluations"]
    assert entry["metrics"]["balanced_accuracy"] > 75
    assert entry["data"] == "digits, 10 % of labels"
    assert "10 % of labels" in tuned.card
