"""What a training starts from: timm's own weights, and parts of an encoder that stay as they are."""

import re
from pathlib import Path

import pytest
import timm
import torch

import zoo
from tests.hub_server import Hub
from zoo.data import open_dataset
from zoo.errors import TrainingError, ZooError
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.release import Release
from zoo.training import RunFolder, build_objective, train
from zoo.training.facts import training_facts

CE = "cifar_resnet20.ce_digits_lt50"
TINY = "test_resnet"  # timm's smallest, with weights of its own


def start(init: str, *changes: str) -> tuple[Objective, Recipe]:
    recipe = Recipe.load(CE, [f"init={init}", *changes])
    return build_objective(recipe, open_dataset(recipe.data, "train", None)), recipe


def test_frozen_parameters_stay_bit_for_bit_and_the_others_move(paco: Release, tmp_path: Path) -> None:
    frozen = ["conv1.weight", "layer[12].*.conv?.weight"]
    init = f'{{release: "{paco.path}", head: fresh, freeze: {frozen}}}'
    short = ["training.epochs=2", "schedule.warmup_epochs=1", "training.device=cpu"]
    objective, recipe = start(init, *short)
    before = {name: p.detach().clone() for name, p in objective.encoder.named_parameters()}
    train(objective, open_dataset(recipe.data, "train", None), recipe, RunFolder(tmp_path), resume=False)
    stayed = {n for n, p in objective.encoder.named_parameters() if torch.equal(p, before[n])}
    convolutions = {n for n, p in before.items() if p.ndim == 4}
    assert stayed == {n for n in convolutions if not n.startswith("layer3.")}


def test_a_start_that_does_not_fit_is_refused(paco: Release, timms: str) -> None:
    with pytest.raises(TrainingError, match=r'init\.freeze: no .* matches "conv1\.wieght".*Did you'):
        start(f'{{release: "{paco.path}", head: fresh, freeze: [conv1.wieght]}}')
    with pytest.raises(TrainingError, match=f'"{timms}" is {TINY} .*expected .*cifar_resnet20'):
        start(f'{{release: "{timms}", head: fresh}}')


@pytest.mark.parametrize(
    ("arch", "args", "message"),
    [
        ("cifar_resnet20", "{num_classes: 10}", "backbone.args: num_classes cannot be part of a release"),
        (TINY, "{global_pool: ''}", "test_resnet: makes [2, 96, 1, 1] of 2 images, expected pooled features"),
    ],
)
def test_arguments_that_no_release_can_have_are_refused_before_training(arch, args, message) -> None:
    recipe = Recipe.load(CE, [f"backbone.arch={arch}", f"name={arch}.x", f"backbone.args={args}"])
    with pytest.raises(ZooError, match=re.escape(message)):
        build_objective(recipe, open_dataset(recipe.data, "train", None))


@pytest.fixture
def timms(tmp_path: Path, hub: Hub) -> str:
    """The name of timm's weights that lie, with values no initialisation would give, on the Hub."""
    (name,) = timm.list_pretrained(f"{TINY}.*")
    model = timm.create_model(TINY)
    model.load_state_dict({k: torch.full_like(v, 0.125) for k, v in model.state_dict().items()})
    timm.models.save_for_hf(model, tmp_path / "timm", safe_serialization=True)
    hub.create(f"timm/{name}", {file.name: file.read_bytes() for file in (tmp_path / "timm").iterdir()})
    return f"timm:{name}"


def test_timms_weights_start_a_training_and_are_recorded(timms: str) -> None:
    sized = [f"name={TINY}.x", f"backbone.arch={TINY}", "views.eval.size=32", "data.image_size=32"]
    objective, recipe = start(f'{{release: "{timms}", head: fresh}}', *sized)
    assert all((each == 0.125).all() for each in objective.encoder.parameters())
    assert not (objective.classifier.weight == 0.125).any()
    facts = training_facts(recipe, objective, [], open_dataset(recipe.data, "train", None))
    assert facts["init_weights_sha256"] == zoo.open(timms).config["zoo"]["weights_sha256"]


@pytest.mark.usefixtures("no_pictures")
def test_weights_trained_on_from_others_keep_their_terms_and_name_them(copied: Path, tmp_path: Path) -> None:
    zoo.open(copied).with_license("cc-by-nc-4.0")
    changes = ("training.epochs=1", "evaluation=[]", "schedule.warmup_epochs=0")
    tuned = zoo.finetune(CE, init=copied, head="centers", out=tmp_path / "tuned", overrides=changes)
    assert tuned.config["pretrained_cfg"]["license"] == "cc-by-nc-4.0"
    assert "released under `cc-by-nc-4.0`" in tuned.card
    assert tuned.recipe["init"]["release"] == str(copied), "an absolute path means one thing"
