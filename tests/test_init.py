"""What a training starts from: timm's own weights, and parts of an encoder that stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import zoo
from zoo.api import evaluate_release
from zoo.data import open_dataset
from zoo.errors import RecipeError, TrainingError, ZooError
from zoo.objectives import Objective
from zoo.release import Release
from zoo.training import Recipe, RunFolder, build_objective, train

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
    dataset = open_dataset(recipe.data, "train", None)
    train(objective, dataset, recipe, RunFolder(tmp_path / "run"), resume=False)
    stayed = {n for n, p in objective.encoder.named_parameters() if torch.equal(p, before[n])}
    convolutions = {n for n, p in before.items() if p.ndim == 4}
    assert stayed == {n for n in convolutions if not n.startswith("layer3.")}


def test_a_pattern_that_freezes_nothing_is_refused(paco: Release) -> None:
    with pytest.raises(
        TrainingError, match=r'init\.freeze: no parameter .* matches "conv1\.wieght".*Did you'
    ):
        start(f'{{release: "{paco.path}", head: fresh, freeze: [conv1.wieght]}}')


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", 'names no weights; expected e.g. "timm:resnet50'),
        ("resnet18.tv_in1k", '"timm:resnet18.tv_in1k" is a resnet18, but backbone.arch is cifar_resnet20'),
        ("cifar_resnet20.tv_in1k", 'no weights "cifar_resnet20.tv_in1k".* none of this architecture'),
    ],
)
def test_weights_that_timm_lacks_are_refused(name: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        start(f'{{release: "timm:{name}", head: fresh}}')


@pytest.mark.parametrize(
    ("arch", "args", "message"),
    [
        (
            "resnet18",
            "{pretrained: true, drop_rate: 0.1}",
            "backbone.args: pretrained cannot be part of a release; expected arguments of resnet18. To start "
            'from timm\'s own weights write init: {release: "timm:resnet18.a1_in1k"}',
        ),
        (
            "cifar_resnet20",
            "{pretrained: true}",
            "backbone.args: pretrained cannot be part of a release; expected arguments of cifar_resnet20. "
            "timm has no weights of cifar_resnet20",
        ),
        (
            "cifar_resnet20",
            "{num_classes: 10, checkpoint_path: x}",
            "backbone.args: checkpoint_path, num_classes cannot be part of a release; expected arguments of "
            "cifar_resnet20",
        ),
        (
            "cifar_resnet20",
            "{width: 20000}",
            'backbone.args: "model_args.width": found 20000, expected at most 16384',
        ),
        (
            TINY,
            "{global_pool: ''}",
            "test_resnet: makes [2, 96, 1, 1] of 2 images, expected pooled features [2, 96]; leave "
            "global_pool and what else decides its output out of the model's arguments",
        ),
    ],
)
def test_arguments_that_no_release_can_have_are_refused_before_training(
    arch: str, args: str, message: str
) -> None:
    recipe = Recipe.load(CE, [f"backbone.arch={arch}", f"name={arch}.x", f"backbone.args={args}"])
    with pytest.raises(ZooError) as caught:
        build_objective(recipe, open_dataset(recipe.data, "train", None))
    assert str(caught.value) == message
    assert isinstance(caught.value, RecipeError) or "makes" in message or "at most" in message


def cache_weights(cache: Path) -> str:
    """Lay out a cache as huggingface_hub does, with weights that no initialisation would give; their name."""
    (name,) = timm.list_pretrained(f"{TINY}.*")
    folder = cache / f"models--timm--{name}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    weights = {k: torch.full_like(v, 0.125) for k, v in timm.create_model(TINY).state_dict().items()}
    save_file(weights, snapshot / "model.safetensors", metadata={"format": "pt"})
    return name


def test_timms_weights_are_read_from_the_cache_when_offline(tmp_path: Path) -> None:
    name = cache_weights(tmp_path)
    code = (
        "from zoo.training import Recipe, build_objective\n"
        "from zoo.data import open_dataset\n"
        f"r = Recipe.load('{CE}', ['name={TINY}.x', 'backbone.arch={TINY}',\n"
        f"    'init={{release: \"timm:{name}\", head: fresh}}',\n"
        "    'views.eval.size=32', 'data.image_size=32'])\n"
        "o = build_objective(r, open_dataset(r.data, 'train', None))\n"
        "assert all((p == 0.125).all() for p in o.encoder.parameters())\n"
        "assert o.encoder.num_classes == 0\n"
        "assert not (o.classifier.weight == 0.125).any()\n"
    )
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.usefixtures("no_network")
def test_without_a_network_timms_weights_are_those_of_the_cache_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    (name,) = timm.list_pretrained(f"{TINY}.*")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    changes = [f"name={TINY}.x", f"backbone.arch={TINY}", "views.eval.size=32", "data.image_size=32"]
    recipe = Recipe.load(CE, [*changes, f"init={{release: 'timm:{name}', head: fresh}}"])
    data = open_dataset(recipe.data, "train", None)
    with pytest.raises(TrainingError) as refused:
        build_objective(recipe, data)
    reason = f"cannot be reached at {constants.ENDPOINT}; is there a network"
    assert str(refused.value) == f'init.release: timm\'s weights "{name}": {reason}'
    cache_weights(tmp_path)
    encoder = build_objective(recipe, data).encoder
    assert all((each == 0.125).all() for each in encoder.parameters())


@pytest.mark.usefixtures("no_network")
def test_timms_weights_are_measured_and_embed_images_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    name = cache_weights(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    preprocess = {"input_size": 32, "crop_pct": 1.0, "interpolation": "bilinear", "mean": [0.5] * 3}
    preprocess["std"] = [0.5] * 3
    found = evaluate_release(
        f"timm:{name}",
        "retrieval",
        "digits",
        preprocess=preprocess,
        workers=0,
        save=True,
        out=None,
        resume=False,
        settings={},
    )
    assert found.record is None
    assert found.reason == f"timm:{name} is no release"
    model = timm.create_model(name, pretrained=True, num_classes=0)
    same = zoo.evaluate(model, "retrieval", "digits", preprocess=preprocess)
    assert found.entry["metrics"] == same["metrics"]
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8), "red").save(tmp_path / "images" / "red.png")
    embedding = zoo.embed(f"timm:{name}", tmp_path / "images", preprocess=preprocess)
    assert embedding.names == ("red.png",)
    assert embedding.about["encoder"] == f"timm:{name}"
    near = rf'encoder: timm has no weights "{TINY}.x"\..* It has: {name}'
    with pytest.raises(TrainingError, match=near):
        zoo.evaluate(f"timm:{TINY}.x", "knn", "digits")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ReadTimeout", "the Hub did not answer in time; try again"),
        ("RemoteProtocolError", "the connection was cut (halfway); run the same command again"),
    ],
)
def test_a_download_of_timms_weights_that_stalls_is_one_clear_error(
    kind: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoo import hub_client

    def stall(*_: object, **__: object) -> None:
        raise getattr(hub_client._transport, kind)("halfway")  # no OSError

    (name,) = timm.list_pretrained(f"{TINY}.*")
    monkeypatch.setattr(timm, "create_model", stall)
    changes = [f"name={TINY}.x", f"backbone.arch={TINY}", "views.eval.size=32", "data.image_size=32"]
    recipe = Recipe.load(CE, [*changes, f"init={{release: 'timm:{name}', head: fresh}}"])
    with pytest.raises(TrainingError) as refused:
        build_objective(recipe, open_dataset(recipe.data, "train", None))
    assert str(refused.value) == f'init.release: timm\'s weights "{name}": {said}'


@pytest.mark.usefixtures("no_pictures")
def test_weights_trained_on_from_others_keep_their_terms_and_name_them(paco, tmp_path):
    import json
    import shutil

    start = shutil.copytree(paco.path, tmp_path / "start")
    config = json.loads((start / "config.json").read_text())
    config["pretrained_cfg"]["license"] = "cc-by-nc-4.0"
    (start / "config.json").write_text(json.dumps(config))
    changes = ("training.epochs=1", "evaluation=[]", "schedule.warmup_epochs=0")
    tuned = zoo.finetune(
        "cifar_resnet20.ce_digits_lt50", init=start, head="centers", out=tmp_path / "tuned", overrides=changes
    )
    assert tuned.config["pretrained_cfg"]["license"] == "cc-by-nc-4.0"
    assert "released under `cc-by-nc-4.0`" in tuned.card
    assert tuned.recipe["init"]["release"] == str(start), "an absolute path means one thing"
