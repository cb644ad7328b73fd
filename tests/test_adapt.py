"""Few trained parameters: `train_only` (BitFit, BatchNorm alone) and `adapt` (LoRA), of a ViT and a CNN."""

from __future__ import annotations

import fnmatch
import sys
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import zoo
from tests.test_step import CPU
from tests.test_training import SHORT
from zoo.data import open_dataset
from zoo.errors import RecipeError
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training.adapt import freeze_encoder, merge_adapters
from zoo.training.build import open_loader
from zoo.training.precision import place
from zoo.training.step import Stepper

CE = "cifar_resnet20.ce_digits_lt50"
BACKBONES = {
    "cnn": "{arch: cifar_resnet20}",
    "vit": "{arch: vit_tiny_patch16_224, args: {img_size: 8, patch_size: 4, depth: 2, embed_dim: 48}}",
}
MOCO = "shipped:cifar_resnet20.moco_v2_ft_digits_lt50"


def adapted(backbone: str, *changes: str) -> Recipe:
    arch = BACKBONES[backbone].strip("{}").split(",")[0].split()[-1]
    return Recipe.load(CE, [*SHORT, f"backbone={BACKBONES[backbone]}", f"name={arch}.x", *changes])


def built(recipe: Recipe) -> Objective:
    return build_objective(recipe, open_dataset(recipe.data, "train", None))


def stepped(recipe: Recipe, steps: int = 3) -> Objective:
    """Train a few steps, as the loop does."""
    dataset, objective = open_dataset(recipe.data, "train", None), built(recipe)
    place(objective, recipe, CPU)
    stepper = Stepper(objective, recipe, 6, CPU)
    for step, batch in enumerate(open_loader(dataset, recipe, CPU).stream(0, steps)):
        stepper(step, batch)
    return objective


def state_of(encoder: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in encoder.state_dict().items()}


def changed(encoder: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize(
    ("backbone", "patterns"),
    [("cnn", ["*.bias"]), ("cnn", ["*bn*"]), ("vit", ["*.bias"]), ("vit", ["*norm*"]), ("vit", [])],
)
def test_what_matches_is_trained_and_nothing_else_of_the_encoder(backbone: str, patterns: list[str]) -> None:
    recipe = adapted(backbone, f"train_only={patterns}")
    before = state_of(built(recipe).encoder)
    objective = stepped(recipe)
    named = [name for name, _ in objective.encoder.named_parameters()]
    expected = {name for pattern in patterns for name in fnmatch.filter(named, pattern)}
    assert changed(objective.encoder, before) & {*named} == expected
    assert all(parameter.requires_grad for parameter in objective.classifier.parameters())


@pytest.mark.parametrize("changes", [[], ["train_only=['layer*']"], ["adapt={kind: lora, rank: 2}"]])
def test_a_fixed_batchnorm_keeps_parameters_and_statistics_and_the_rest_is_trained(
    changes: list[str],
) -> None:
    before = state_of(built(adapted("cnn")).encoder)
    encoder = stepped(adapted("cnn", "fixed_batchnorm=true", *changes)).encoder
    merge_adapters(encoder)
    expected = {
        name
        for name in before
        if "conv" in name and (name.startswith("layer") or "layer" not in str(changes))
    }
    assert changed(encoder, before) == expected


@pytest.mark.parametrize("backbone", BACKBONES)
def test_adapters_are_all_that_is_trained_and_merge_into_the_layers_beside_them(backbone: str) -> None:
    recipe = adapted(backbone, "adapt={kind: lora, rank: 4}", "optimizer.lr=0.05")
    before = state_of(built(adapted(backbone)).encoder)
    encoder = stepped(recipe, 6).encoder.eval()
    layers = {name for name, each in encoder.named_modules() if type(each) in (nn.Linear, nn.Conv2d)}
    layers = {name.removesuffix(".base_layer") for name in layers if ".lora_" not in name}
    trained = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert {name.partition(".lora_")[0] for name in trained} == layers
    assert all(bool(parameter.any()) for name, parameter in encoder.named_parameters() if name in trained)
    images = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        expected = encoder(images)
        merge_adapters(encoder)
        torch.testing.assert_close(encoder(images), expected, rtol=1e-4, atol=1e-5)
    assert [*encoder.state_dict()] == [*before], "the keys are timm's"
    # BatchNorm, of which nothing is trained, keeps its statistics
    assert changed(encoder, before) == {f"{name}.weight" for name in layers}


def test_adapters_and_named_parameters_are_trained_together() -> None:
    recipe = adapted("cnn", "adapt={kind: lora, target: ['layer3.*.conv?']}", "train_only=['layer3.*bn1.*']")
    before = state_of(built(adapted("cnn")).encoder)
    encoder = stepped(recipe).encoder
    merge_adapters(encoder)
    found = {name for name in changed(encoder, before) if name.endswith(("weight", "bias"))}
    parts = {f"layer3.{i}.{part}" for i in range(3) for part in ("conv1.weight", "conv2.weight")}
    assert found == parts | {f"layer3.{i}.bn1.{part}" for i in range(3) for part in ("weight", "bias")}


def test_a_key_encoder_keeps_the_statistics_that_the_encoder_keeps() -> None:
    changes = [*SHORT, "train_only=['layer[23].*']", "adapt=lora"]
    objective = built(Recipe.load("cifar_resnet20.paco_digits_lt50", changes)).train()
    for encoder in (objective.encoder, *objective.teacher.module.children()):
        if hasattr(encoder, "bn1"):
            assert not encoder.bn1.training and encoder.layer2[0].bn1.training


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train_only=['*.biass']", r'train_only: "\*\.biass" matches no parameter .*conv1\.weight, bn1'),
        ("adapt={kind: lora, target: [fc]}", r'adapt\.target: "fc" matches no linear layer .* has conv1,'),
        ("adapt={kind: lora, rank: 512}", r"adapt\.rank: found 512"),
        ("adapt={kind: lora, ranks: 4}", r'unknown key "adapt\.ranks"\. Did you mean "rank"'),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(change: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        built(adapted("cnn", change))


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(RecipeError, match=r"adapt: needs the package peft: pip install .*\[peft\]"):
        built(adapted("cnn", "adapt=lora"))


def test_convolutions_in_groups_and_of_other_weights_than_they_hold_have_no_adapter() -> None:
    recipe = adapted("cnn", "adapt={kind: lora, rank: 2}")
    for arch in ("tf_efficientnet_lite0", "resnetv2_50"):
        encoder = timm.create_model(arch, num_classes=0).eval()
        freeze_encoder(encoder, recipe)
        found = {name for name, module in encoder.named_modules() if hasattr(module, "lora_A")}
        assert all("dw" not in name for name in found)
        assert ("blocks.1.0.conv_pw" in found) == arch.startswith("tf")


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_release_is_plain_timm_and_records_how_many_were_trained(backbone: str, tmp_path: Path) -> None:
    changes = adapted(backbone, "adapt=lora", "training.ema={decay: 0.8}", "evaluation=[classifier]")
    release = zoo.pretrain(changes, out=tmp_path / "a")
    objective = built(changes)
    count = sum(p.numel() for p in objective.parameters() if p.requires_grad)
    assert release.metrics["training"]["trained_parameters"] == count < 65_000
    assert "peft" in release.metrics["training"]["versions"]
    plain = timm.create_model(f"local-dir:{release.path}", pretrained=True, num_classes=0).eval()
    ours, images = release.load().eval(), torch.randn(2, 3, 8, 8)
    assert all(torch.equal(value, ours.state_dict()[name]) for name, value in plain.state_dict().items())
    assert torch.equal(plain(images), ours(images))


@pytest.mark.usefixtures("no_pictures")
def test_a_second_stage_trains_the_classifier_on_what_the_adapters_became(tmp_path: Path) -> None:
    changes = ("adapt=lora", "method={name: crt, epochs: 1}", "evaluation=[]")
    release = zoo.pretrain(adapted("cnn", *changes), out=tmp_path / "a")
    stages = release.metrics["training"]["stages"]
    assert stages["cross_entropy"]["trained_parameters"] > stages["crt"]["trained_parameters"] == 650
    before, after = built(adapted("cnn")).encoder.state_dict(), release.load().state_dict()
    assert not torch.equal(before["layer1.0.conv1.weight"], after["layer1.0.conv1.weight"])


@pytest.mark.usefixtures("no_pictures")
def test_adapters_learn_what_a_classifier_on_frozen_features_cannot(tmp_path: Path) -> None:
    """90.5 and 80.6 were measured, and 92.3 with all weights trained."""
    changes = ("training.epochs=10", "schedule.warmup_epochs=1", "optimizer.lr=0.05", "training.device=cpu")

    def accuracy(change: str) -> float:
        given = {"data": "digits?per_class=40", "out": tmp_path / change[:5]}
        tuned = zoo.finetune(CE, init=MOCO, **given, overrides=[change, *changes, "evaluation=[classifier]"])
        return float(tuned.metrics["evaluations"][0]["metrics"]["balanced_accuracy"])

    assert accuracy("adapt={kind: lora, rank: 2}") > accuracy("train_only=[]") + 5
