"""Recipes: strict, lossless, complete; overrides; impossible combinations."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from pydantic import create_model

import zoo
from zoo import catalog
from zoo.config import load_yaml
from zoo.errors import RecipeError
from zoo.objectives import OBJECTIVES, ObjectiveConfig
from zoo.recipe import Recipe, keys
from zoo.recipe.protocols import PROTOCOLS

PACO = "cifar_resnet20.paco_digits_lt50"
LATE = (
    "schedule={name: multistep, warmup_epochs: 0, warmup_lr: 0.0, min_lr: 0.0, milestones: [10, 1000], "
    "decay_rate: 0.1}"
)
PICO = "cifar_resnet20.pico_digits_q05"
MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"


@pytest.mark.parametrize("name", catalog.list_recipes())
def test_shipped_recipe_is_a_page_and_survives_a_round_trip(name: str) -> None:
    text = catalog.recipe_path(name).read_text()
    recipe = Recipe.load(name)
    assert recipe.name == name
    assert load_yaml(recipe.to_yaml(), name) == recipe.model_dump(mode="json")  # no value is left out
    assert Recipe.from_yaml(recipe.to_yaml(), "again") == recipe
    assert text.startswith("#")  # the header
    assert len(text.splitlines()) <= 45


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
    with pytest.raises(RecipeError, match=r'mine.yaml: missing key "training.epochs"'):
        Recipe.from_yaml(without, "mine.yaml", ["training.seed=1"])


@pytest.mark.parametrize("name", catalog.list_recipes())
def test_shipped_recipe_has_a_header_that_says_what_a_person_needs(name: str) -> None:
    header = [line for line in catalog.recipe_path(name).read_text().splitlines() if line.startswith("#")]
    text = "\n".join(header)
    for part in (f"zoo pretrain {name}", "Takes:", "Expect:"):
        assert part in text, part
    facts = catalog.recipe_header(text)
    assert {"Target", "Here", "Takes", "Expect"} <= set(facts)
    assert re.match(r"(none|[\d.]+ [\w -]+);", facts["Target"]), facts["Target"]
    assert re.match(r"(not run$|not run[:;]|run 20\d\d-\d\d, seeds? [\d ]+[:;])", facts["Here"]), facts[
        "Here"
    ]


def refusal(change: Any, name: str = PACO, overrides: tuple[str, ...] = ()) -> str:
    data = copy.deepcopy(Recipe.load(name).model_dump(mode="json"))
    change(data)
    from zoo.config import dump_yaml

    with pytest.raises(RecipeError) as error:
        Recipe.from_yaml(dump_yaml(data), "my.yaml", overrides)
    assert str(error.value).startswith("my.yaml: ")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unknown_key_in_an_objective_names_the_nearest() -> None:
    text = refusal(lambda d: d["objective"].update(tua=0.1))
    assert 'unknown key "objective.tua". Did you mean "tau"?' in text
    assert 'unknown key "views.train.0.0.szie". Did you mean "size"?' in refusal(
        lambda d: d["views"]["train"][0].insert(0, {"op": "pad_crop", "size": 8, "szie": 8})
    )


def test_a_field_of_its_objectives_name_does_not_confuse_the_path() -> None:
    name = "cifar_resnet20.margin_digits_lt50"
    with pytest.raises(RecipeError) as error:
        Recipe.load(name, ["objective.pair=class"])
    assert 'unknown key "objective.pair". Did you mean "pairs"?' in str(error.value)
    with pytest.raises(RecipeError, match=r'"objective\.margin": found 0 '):
        Recipe.load(name, ["objective.margin=0"])


def test_unknown_objective_and_wrong_types_name_the_path() -> None:
    assert "\"objective.name\": found 'pacco' (str), expected one of" in refusal(
        lambda d: d["objective"].update(name="pacco")
    )
    assert "\"optimizer.lr\": found '0.1' (str), expected a valid number" in refusal(
        lambda d: d["optimizer"].update(lr="0.1")
    )
    assert '"training.epochs": found 2.5 (float)' in refusal(lambda d: d["training"].update(epochs=2.5))
    assert 'missing key "optimizer.lr"' in refusal(lambda d: d["optimizer"].pop("lr"))
    assert 'missing key "objective.name"' in refusal(lambda d: d["objective"].pop("name"))


@pytest.mark.parametrize(
    ("name", "override", "expected"),
    [
        (PACO, "views.train=[[]]", "views.train: found 1 view(s)"),
        (PACO, "objective.key_groups=17", "objective.key_groups: found 17, expected at most 16"),
        (PACO, "schedule.warmup_epochs=1000", "schedule.warmup_epochs: found 1000"),
        (
            PACO,
            LATE,
            "schedule.milestones: [1000] never reached",
        ),
        (PACO, "schedule.milestones=[10]", "expected some for"),
        (PACO, "schedule.milestones=[20, 10]", "milestones: found [20, 10], expected each epoch"),
        (PACO, "schedule.milestones=[10, 10]", "milestones: found [10, 10], expected each epoch"),
        (PACO, "backbone.arch=resnet18", 'expected "resnet18.TAG"'),
        (PACO, f"name=cifar_resnet20.{'x' * 82}", '"name": found'),
        (
            PACO,
            "backbone.arch=resnet18.a1_in1k",
            'backbone.arch: found "resnet18.a1_in1k", expected the architecture without the tag, "resnet18"; '
            'weights are named by init: {release: "timm:resnet18.a1_in1k"}',
        ),
        (PACO, "schedule.name=multistep", "schedule.milestones: found []"),
        (
            PACO,
            "schedule={name: constant, warmup_epochs: 1, warmup_lr: 0.0, warmup_prefix: true, min_lr: 0.0, "
            "milestones: [], decay_rate: 0.1}",
            "schedule.warmup_prefix: found true",
        ),
        (PACO, "init={release: x, head: centers}", 'init.head: "centers" needs objective "classify"'),
        (
            MOCO,
            "evaluation=[{protocol: classifier}]",
            'evaluation.0: protocol "classifier" needs class centers',
        ),
        (PACO, "name=a/b", '"name": found'),
        (
            MOCO,
            "training.epochs=20",
            "objective.feature_transform.start_epoch: 20 never reached in training.epochs (20)",
        ),
        (PICO, "data.partial_labels=null", 'found null with objective "pico", expected candidate sets'),
        (PACO, "data.partial_labels={kind: uniform, rate: 0.1}", "expected null: only pico learns from"),
        (PICO, "objective.prototype_start=99", "objective.prototype_start: 99 never reached"),
        (
            MOCO,
            "objective.feature_transform={positives: null, negatives: null, renormalize: true, start_epoch: 0}",  # noqa: E501
            "objective.feature_transform: found neither positives nor negatives",
        ),
    ],
)
def test_impossible_combinations_are_refused(name: str, override: str, expected: str) -> None:
    with pytest.raises(RecipeError) as error:
        Recipe.load(name, [override])
    assert expected in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in catalog.list_recipes() if "digits" in name),
        "cifar_resnet32.balanced_softmax_cifar100_lt100",  # multistep
    ],
)
def test_one_error_says_all_that_one_epoch_needs(name: str) -> None:
    with pytest.raises(RecipeError, match=r"never reached in|expected fewer than training\.epochs") as caught:
        Recipe.load(name, ["training.epochs=1"])
    mended = str(caught.value).partition("; add --set ")[2].split(" --set ")
    Recipe.load(name, ["training.epochs=1", *mended])


def test_what_one_epoch_needs_stands_in_one_message() -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(MOCO, ["training.epochs=1"])
    assert str(caught.value).endswith(
        "schedule.warmup_epochs: found 5, expected fewer than training.epochs (1); "
        "objective.feature_transform.start_epoch: 20 never reached in training.epochs (1); "
        "add --set schedule.warmup_epochs=0 --set objective.feature_transform.start_epoch=0"
    )
    with pytest.raises(RecipeError, match=r"; add --set schedule\.milestones=\[10\]$"):
        Recipe.load(PACO, [LATE])


def test_fp16_on_the_cpu_is_refused() -> None:
    with pytest.raises(RecipeError, match=r'training\.precision: "fp16" needs a GPU'):
        Recipe.load(PACO, ["training.precision=fp16", "training.device=cpu"])


def test_overrides_reach_into_lists_and_are_recorded() -> None:
    recipe = Recipe.load(PACO, ["objective.tau=0.3", "views.train.0.0.degrees=5.0", "training.clip_grad=1.0"])
    again = Recipe.from_yaml(recipe.to_yaml(), "again", ["objective.feature_transform.start_epoch=2"])
    assert again.objective.feature_transform.positives.alpha == 2.0, "the rest is the defaults"
    assert again.objective.tau == 0.3
    assert again.views.train[0][0].degrees == 5.0
    assert again.training.clip_grad == 1.0
    assert recipe.sha256 != Recipe.load(PACO).sha256


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["objective.tau=0.2", "training.epochs=70"], "objective.tau=0.2, training.epochs=70"),
        (["objective.tau=0.1", "objective.tau=2e-1", "training.seed=3"], "objective.tau=0.2"),
        ({"data.source": {"kind": "folder"}}, "data.source={kind: folder}"),
        (["data.source={kind: folder, train: /home/alice/own}"], "another data.source"),  # no paths
        (["views.train.0.0.degrees=1.0"], "views.train.0.0.degrees=1.0"),
    ],
)
def test_a_recipe_with_overrides_says_what_they_change(overrides: Any, expected: str) -> None:
    own, changed = Recipe.load(PACO).description, Recipe.load(PACO, overrides)
    assert changed.description == f"{own} Changed: {expected}."
    again = Recipe.from_yaml(changed.to_yaml(), "again", ["training.clip_grad=1.0", "training.seed=9"])
    assert again.description == f"{own} Changed: {expected}. Changed: training.clip_grad=1.0."


def test_a_description_stays_where_it_is_true_or_given() -> None:
    own = Recipe.load(PACO).description
    computed = ["training.seed=3", "training.threads=1", "training.accumulate=2", "evaluation=[]"]
    assert Recipe.load(PACO, computed).description == own
    same = f"objective.tau={Recipe.load(PACO).objective.tau}"
    assert Recipe.load(PACO, [same, "name=cifar_resnet20.other"]).description == own
    assert Recipe.load(PACO, ["objective.tau=0.2", "description=Mine."]).description == "Mine."


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("objective.tua=0.1", 'unknown key "objective.tua". Did you mean "tau"?'),
        ("objektive.tau=0.1", 'unknown key "objektive". Did you mean "objective"?'),
        ("objective.tau", "expected KEY.KEY=VALUE"),
        ("objective.tau=high", "\"objective.tau\": found 'high' (str)"),
        ("views.train.7.0.size=3", "expected an index below 2"),
        ("objective.tau.start=0.2", '"objective.tau" is 0.1 and has no keys'),
        ("init.head=fresh", 'missing key "init.release"'),
    ],
)
def test_bad_overrides_name_the_key(override: str, expected: str) -> None:
    with pytest.raises(RecipeError) as error:
        Recipe.load(PACO, [override])
    assert expected in str(error.value)


def test_unknown_recipe_names_the_nearest(tmp_path) -> None:
    with pytest.raises(RecipeError, match=r'Did you mean "cifar_resnet20\.paco_digits_lt50"'):
        Recipe.load("cifar_resnet20.paco_digit_lt50")
    binary = tmp_path / "r.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot be read"):
        Recipe.load(binary)
    binary.write_text("- 1\n")
    with pytest.raises(RecipeError, match="found list, expected a mapping"):
        Recipe.load(binary)


def test_every_key_of_every_section_has_a_text() -> None:
    known = {each.name: each for top in keys.find_keys() for each in with_all_inside(top)}
    assert all(each.text for each in known.values())
    for place, tag, schemas in (
        ("objective", "name", [each.Config for each in OBJECTIVES.values()]),
        ("evaluation", "protocol", [*PROTOCOLS.values()]),
    ):
        for schema in schemas:
            (word,) = get_args(schema.model_fields[tag].annotation)
            assert {f"{place}.{word}.{field}" for field in schema.model_fields} <= known.keys()
    inherited = known["objective.paco.momentum"]
    assert inherited[1:-1] == (
        "objective.momentum",
        "number or section",
        "0.999",
        "m of the key encoder: a number or a schedule.",
    )
    assert known["evaluation.knn.k"].path == "evaluation.N.k"
    kinds = {
        "training.seed": "whole number from 0, below 9.22337e+18",
        "training.ema": "section or null",
        "views.train": "list of list of section",
        "views.train.pad_crop.size": "whole number above 0",
        "schedule.name": "constant, cosine, multistep",
        "objective.paco.tau": "number or section",
    }
    assert {name: known[name].kind for name in kinds} == kinds
    assert keys.find_keys("training.epochs") == [known["training.epochs"]]
    assert keys.find_keys("ema") == keys.find_keys("training.ema")
    assert {"optimizer.lr", "method.lr"} <= {key.path for key in keys.find_keys("lr")}
    temperatures = [key.path for key in keys.find_keys("tau")]
    assert len({*temperatures}) == len(temperatures) and "objective.moco.tau" in temperatures
    with pytest.raises(RecipeError, match=r'found "moko".*Did you mean "moco"'):
        keys.find_keys("moko")


def with_all_inside(key: keys.Key) -> list[keys.Key]:
    return [key, *(each for inner in key.inside for each in with_all_inside(inner))]


OWN = """
from typing import Literal
from zoo.objectives import Objective, ObjectiveConfig


class OwnConfig(ObjectiveConfig):
    name: Literal["own"]
    scale: float


class Own(Objective):
    Config = OwnConfig
    num_views = 2
"""
SAY_OWN = ["objective={name: own, scale: 2.0}", "name=cifar_resnet20.own"]
SIMCLR = "cifar_resnet20.simclr_digits_lt50"


def own_objective(**attributes: object) -> Any:
    names: dict[str, Any] = {"__name__": "own"}
    exec(compile(OWN, "own.py", "exec", dont_inherit=True), names)
    return type("Own", (names["Own"],), attributes) if attributes else names["Own"]


def own_config(name: str) -> type[ObjectiveConfig]:
    return create_model("OwnConfig", __base__=ObjectiveConfig, name=(Literal[name], ...))


def test_an_objective_of_ones_own_is_registered_at_any_time(own_objectives: None) -> None:
    with pytest.raises(RecipeError, match=r'"objective.name": found .own. .*, expected one of .*classify'):
        Recipe.load(SIMCLR, SAY_OWN)
    for _ in range(2):  # a notebook's cell runs again, with another class of the same name
        own = zoo.register_objective(own_objective())
        recipe = Recipe.load(SIMCLR, SAY_OWN)
        assert isinstance(recipe.objective, own.Config)
    assert Recipe.from_yaml(recipe.to_yaml(), "r") == recipe
    with pytest.raises(RecipeError, match=r'unknown key "objective.scael". Did you mean "scale"'):
        Recipe.load(SIMCLR, [*SAY_OWN, "objective.scael=1.0"])
    with pytest.raises(RecipeError, match=r'views.train: found 2 view\(s\), objective "own" expects 1'):
        own.num_views = 1
        Recipe.load(SIMCLR, SAY_OWN)
    assert Recipe.load(PACO).objective.name == "paco"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("own", "objective: found 'own', expected a subclass of zoo.objectives.Objective"),
        (own_objective(Config=None), "objective Own: found Config = None with"),
        (own_objective(Config=ObjectiveConfig), "with the name None, expected a subclass of ObjectiveConfig"),
        (own_objective(num_views=0), "objective Own: found num_views = 0"),
        (own_objective(Config=OBJECTIVES["moco"].Config), 'objective Own: "moco" is an objective of zoo'),
        *(
            (
                own_objective(Config=own_config(name)),
                f"with the name {name!r}, expected",
            )
            for name in ("my obj", "", "../x", "x" * 97)
        ),
    ],
)
def test_what_is_no_objective_is_not_registered(wrong: object, expected: str, own_objectives: None) -> None:
    with pytest.raises(zoo.ZooError) as error:
        zoo.register_objective(wrong)
    assert expected in str(error.value)
    assert "own" not in OBJECTIVES


def test_an_installed_package_names_its_objectives_and_is_imported_for_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_objectives: None
) -> None:
    (tmp_path / "own_of_a_package.py").write_text(OWN)
    record = tmp_path / "own_of_a_package-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Name: own-of-a-package\nVersion: 1.0\n")
    points = (
        "[zoo.objectives]\nown = own_of_a_package:Own\nother = own_of_a_package:Own\ngone = not_there:Own\n"
    )
    (record / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    Recipe.load(PACO)
    assert "own_of_a_package" not in sys.modules
    assert type(Recipe.load(SIMCLR, SAY_OWN).objective).__module__ == "own_of_a_package"
    for name, expected in (("other", 'is called "own" in recipes'), ("gone", "cannot be imported")):
        with pytest.raises(zoo.ZooError, match=f'objective "{name}": .*{expected}'):
            Recipe.load(SIMCLR, [f"objective={{name: {name}, scale: 2.0}}", "name=cifar_resnet20.own"])
    monkeypatch.delitem(sys.modules, "own_of_a_package")
