"""Recipes: strict, lossless, complete; overrides; impossible combinations."""

import re
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import zoo
from zoo import catalog
from zoo.config import load_yaml
from zoo.errors import RecipeError
from zoo.objectives import SHIPPED, Objective, ObjectiveConfig, objective_class
from zoo.objectives.registry import REGISTERED
from zoo.recipe import Recipe, keys
from zoo.recipe.protocols import PROTOCOLS

PACO = "cifar_resnet20.paco_digits_lt50"
CE = "cifar_resnet20.ce_digits_lt50"
PICO = "cifar_resnet20.pico_digits_q05"
MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"
V3 = "vit_tiny_patch16_224.moco_v3_digits_lt50"
CIFAR = "convnext_atto.moco_v2_ft_cifar100"


@pytest.mark.parametrize("name", catalog.list_recipes())
def test_shipped_recipe_is_a_page_with_a_header_and_survives_a_round_trip(name: str) -> None:
    text = catalog.recipe_path(name).read_text()
    recipe = Recipe.load(name)
    assert recipe.name == name
    assert load_yaml(recipe.to_yaml(), name) == recipe.model_dump(mode="json")  # no value is left out
    assert Recipe.from_yaml(recipe.to_yaml(), "again") == recipe
    assert len(text.splitlines()) <= 45 and f"zoo pretrain {name}" in text
    assert {"Target", "Here", "Takes", "Expect"} <= {*re.findall("^# ([A-Z][a-z]+): ", text, re.MULTILINE)}


def test_the_fewest_keys_make_a_recipe_of_the_literatures_values() -> None:
    text = """
        name: resnet18.mine
        description: Mine.
        backbone: {arch: resnet18}
        data: {source: {kind: folder}}
        views: {train: [[{op: random_resized_crop, size: 224}, horizontal_flip]], eval: {size: 224}}
        objective: classify
        optimizer: {name: sgd, lr: 0.1, weight_decay: 0.0001}
        schedule: {name: cosine}
        training: {epochs: 90, batch_size: 256}
        evaluation: [classifier]
    """
    recipe = Recipe.from_yaml(text, "mine.yaml", ["evaluation.0.tau=1.0", "training.ema={decay: 0.99}"])
    assert (recipe.objective.loss, recipe.optimizer.momentum) == ("cross_entropy", 0.9)
    assert recipe.views.train[0][1].p == 0.5 and recipe.evaluation[0].tau == 1.0
    without = text.replace("epochs: 90, ", "")
    assert Recipe.from_yaml(without, "mine.yaml", ["training.epochs=90"]).training.epochs == 90


STOP = "training.early_stopping={validation_fraction: 0.2, metric: accuracy, every: 1, patience: 1}"

CROP = "[{op: random_resized_crop, size: %d}]"


@pytest.mark.parametrize(
    ("name", "override", "expected"),
    [
        (PACO, "objective.tua=0.1", 'unknown key "objective.tua". Did you mean "tau"?'),
        (PACO, "epochs=1", 'unknown key "epochs". Did you mean "training.epochs"?'),
        (PACO, "views.train.0.0.degres=1", 'key "views.train.0.0.degres". Did you mean "degrees"?'),
        (PACO, "objective.name=pacco", "\"objective.name\": found 'pacco'"),
        (PACO, "objective.tau", "expected KEY.KEY=VALUE"),
        (PACO, "views.train.7.0.size=3", '"views.train.7"'),
        (PACO, "views.train.0.0.scale=[1.0, 0.2]", "expected [low, high]"),
        (CIFAR, "views.train.0.3.kernel_size=4", "kernel_size: found 4, expected an odd number"),
        (PACO, "data.long_tail.imbalance=0.01", "equal to 1"),
        (PACO, "objective.tau.start=0.2", '"objective.tau" is 0.1'),
        # combinations
        (PACO, "views.train=[[]]", "views.train: found 1, expected 2"),
        (PACO, "backbone.arch=resnet18", 'expected "resnet18.TAG"'),
        (PACO, f"views.train=[{CROP % 8}, {CROP % 16}]", "views.train: found the sizes [8, 16]"),
        (PACO, "objective.momentum={kind: linear, start: 0.9, end: 9}", "objective.momentum.end"),
        (PACO, "training.threads=100000", "training.threads"),
        (PACO, "views.eval.crop_pct=0.01", "views.eval.crop_pct"),
        (PACO, "views.eval.size=5000", "views.eval.size"),
        (PACO, f"description={'x' * 10_000}", "description"),
        (PACO, "objective.key_groups=17", "objective.key_groups: found 17"),
        (PACO, "schedule.milestones=[10]", "schedule.milestones: found [10]"),
        (CE, "objective.head=cosine", 'head: found "cosine" with loss "cross_entropy" and scale None'),
        (CE, "objective.scale=30.0", 'head: found "linear" with loss "cross_entropy" and scale 30.0'),
        (CE, "objective.mix={mixup: 0.0, cutmix: 0.0}", "mixup 0 and cutmix 0"),
        (PICO, "data.partial_labels=null", "data.partial_labels: found null"),
        (PICO, STOP, "training.early_stopping: found"),
        (
            CE,
            f"training={{epochs: 9, batch_size: 8, knn_every: 1, {STOP[9:].replace('=', ': ')}}}",
            "knn_every",
        ),
        (MOCO, "training.compile=true", 'training.compile": found True'),
        (MOCO, "evaluation=[classifier]", 'evaluation.0: found "classifier"'),
        (MOCO, "training.epochs=1", "schedule.warmup_epochs: found 5"),
        (
            V3,
            "init={release: timm:vit_tiny_patch16_224.augreg_in21k}",
            "objective.sincos_positions: found true",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(name: str, override: str, expected: str) -> None:
    with pytest.raises(RecipeError) as error:
        Recipe.load(name, [override])
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_overrides_are_set_in_their_order() -> None:
    section = "objective.feature_transform={start_epoch: 3}"
    key = "objective.feature_transform.start_epoch"
    changes = [f"{key}=1", section, f"{key}=2"]
    loaded = [Recipe.load(PACO, given).objective for given in (changes, [*changes, section])]
    assert [each.feature_transform.start_epoch for each in loaded] == [2, 3]
    assert Recipe.load(PACO, {" training.epochs ": 20}).training.epochs == 20
    for wrong in ({"": 3}, {"training.": 3}, [None], [1]):
        with pytest.raises(RecipeError, match=r"expected KEY\.KEY=VALUE"):
            Recipe.load(PACO, wrong)


def test_overrides_reach_into_lists_and_are_recorded() -> None:
    recipe = Recipe.load(PACO, ["objective.tau=0.3", "views.train.0.0.degrees=5.0", "training.clip_grad=1.0"])
    again = Recipe.from_yaml(recipe.to_yaml(), "again", ["objective.feature_transform.start_epoch=2"])
    assert again.objective.feature_transform.positives.alpha == 2.0, "the rest is the defaults"
    assert Recipe.load(PACO, "objective.tau=0.3").objective.tau == 0.3, "a single one needs no list"
    assert (again.objective.tau, again.views.train[0][0].degrees, again.training.clip_grad) == (0.3, 5.0, 1.0)


def test_unknown_recipe_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r'Did you mean "cifar_resnet20\.paco_digits_lt50"'):
        Recipe.load("cifar_resnet20.paco_digit_lt50")
    file = tmp_path / "r.yaml"
    for content, expected in ((b"\xff\xfe\x00", "cannot be read"), (b"- 1\n", r"found \[1\] \(list\)")):
        file.write_bytes(content)
        with pytest.raises(RecipeError, match=expected):
            Recipe.load(file)


def test_every_key_of_every_section_has_a_text_and_is_found_by_its_end() -> None:
    known = {key.name: key for top in keys.find_keys() for key in keys.find_keys(top.name)}
    assert all(key.text for key in known.values())
    for name, schema in SHIPPED.items():
        found = {key.name for key in keys.find_keys(f"objective.{name}")}
        assert {f"objective.{name}.{field}" for field in schema.model_fields} <= found
    assert {f"evaluation.{word}" for word in PROTOCOLS} <= known.keys()
    assert known["schedule.name"].kind == "constant, cosine, multistep"
    ends = [f"training.ema{end}" for end in ("", ".decay", ".warmup")]
    assert [key.name for key in keys.find_keys("ema")] == ends
    with pytest.raises(RecipeError, match=r'found "moko".*Did you mean "moco"'):
        keys.find_keys("moko")


NAMED = {"name": Literal["own"]}
SAY_OWN = ["objective={name: own, scale: 2.0}", "name=cifar_resnet20.own"]
SIMCLR = "cifar_resnet20.simclr_digits_lt50"


def own_objective(**attributes: object) -> Any:
    class OwnConfig(ObjectiveConfig):
        name: Literal["own"]
        scale: float

    return type("Own", (Objective,), {"Config": OwnConfig, **attributes})


def test_an_objective_of_ones_own_is_registered_at_any_time(own_objectives: None) -> None:
    with pytest.raises(RecipeError, match=r'"objective.name": found .own. .*classify'):
        Recipe.load(SIMCLR, SAY_OWN)
    for _ in range(2):  # a notebook's cell runs again, with another class of the same name
        own = zoo.register_objective(own_objective())
        recipe = Recipe.load(SIMCLR, SAY_OWN)
        assert isinstance(recipe.objective, own.Config)
    assert Recipe.from_yaml(recipe.to_yaml(), "r") == recipe
    with pytest.raises(zoo.ZooError, match=r'objective Other: "own" is another objective'):
        zoo.register_objective(type("Other", (own,), {}))
    with pytest.raises(RecipeError, match=r'unknown key "objective.scael". Did you mean "scale"'):
        Recipe.load(SIMCLR, [*SAY_OWN, "objective.scael=1.0"])
    with pytest.raises(RecipeError, match=r"views.train: found 2, expected 1 view"):
        own.Config.num_views = 1
        Recipe.load(SIMCLR, SAY_OWN)
    assert Recipe.load(PACO).objective.name == "paco"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("own", "objective: found 'own', expected an Objective"),
        (own_objective(Config=ObjectiveConfig), "expected an Objective whose Config has name"),
        (own_objective(Config=SHIPPED["moco"]), 'objective Own: "moco" is another objective'),
        (type("Own", (), {"Config": own_objective().Config}), "expected an Objective"),
        (own_objective(num_views=1), "objective Own: num_views: expected in its Config"),
        (own_objective(Config=type("C", (BaseModel,), {"__annotations__": NAMED})), "expected an Objective"),
    ],
)
def test_what_is_no_objective_is_not_registered(wrong: object, expected: str, own_objectives: None) -> None:
    with pytest.raises(zoo.ZooError) as error:
        zoo.register_objective(wrong)
    assert expected in str(error.value) and "own" not in REGISTERED


@pytest.mark.usefixtures("own_objectives")
def test_an_installed_package_names_its_objectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from tests.test_recipe import own_objective\nOwn = own_objective(says='packaged')\n"
    (tmp_path / "own_of_a_package.py").write_text(code)
    record = tmp_path / "own_of_a_package-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Name: own-of-a-package\nVersion: 1.0\n")
    points = "own = own_of_a_package:Own\ngone = not_there:Own\n"
    (record / "entry_points.txt").write_text(f"[zoo.objectives]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    Recipe.load(PACO)
    assert "own_of_a_package" not in sys.modules
    assert Recipe.load(SIMCLR, SAY_OWN).objective.scale == 2 and objective_class("own").says == "packaged"
    with pytest.raises(zoo.ZooError, match=r'objective "gone": .*cannot be imported'):
        Recipe.load(SIMCLR, ["objective={name: gone, scale: 2.0}", "name=cifar_resnet20.own"])
    monkeypatch.delitem(sys.modules, "own_of_a_package")
