"""Layer-wise learning rates: which layer a parameter is in, and what its rate is at every step."""

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from zoo.data import open_dataset
from zoo.errors import RecipeError
from zoo.objectives.base import DataInfo, Objective
from zoo.recipe import Recipe
from zoo.recipe.sections import OptimizerSection
from zoo.training import build_objective
from zoo.training.optim import build_optimizer

INFO = DataInfo(torch.ones(2, dtype=torch.long))
VIT = "{arch: vit_tiny_patch16_224, args: {img_size: 8, patch_size: 4, depth: 2}}"


@pytest.mark.parametrize("everything", ["true", "false"])
def test_what_timm_exempts_by_name_is_exempt_from_decay_and_not_from_its_layer(everything: str) -> None:
    changes = ["optimizer.layer_decay=0.5", f"optimizer.decay_norm_and_bias={everything}", f"backbone={VIT}"]
    recipe = Recipe.load("cifar_resnet20.ce_digits_lt50", [*changes, "name=vit_tiny_patch16_224.x"])
    objective = build_objective(recipe, open_dataset(recipe.data, "train", None))
    names = {id(parameter): name for name, parameter in objective.named_parameters()}
    groups = build_optimizer(objective, recipe.optimizer).param_groups
    found = {names[id(p)]: (g["lr_scale"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert found.keys() == {*names.values()}
    assert found["encoder.pos_embed"] == found["encoder.cls_token"] == (0.5**3, 0.0)
    decay = recipe.optimizer.weight_decay
    assert found["encoder.blocks.1.attn.qkv.weight"] == (0.5, decay)
    # timm counts the last norm to the last block
    assert found["encoder.norm.weight"] == (0.5, decay if everything == "true" else 0.0)


@pytest.mark.parametrize("arch", ["cifar_resnet32", "convnext_atto", "test_nfnet"])
def test_layers_are_those_of_timm_for_the_same_model_with_a_classifier(arch: str) -> None:
    with torch.device("meta"):
        whole, encoder = timm.create_model(arch, num_classes=7), timm.create_model(arch, num_classes=0)
        objective = Objective(None, encoder, INFO)
        objective.add_module("projector", nn.Linear(2, 2))

    def scales(model: nn.Module) -> dict[str, float]:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = param_groups_layer_decay(model, layer_decay=0.7)
        return {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}

    theirs, ours = scales(whole), scales(objective)
    assert {ours.pop("projector.weight"), ours.pop("projector.bias")} == {1.0}
    assert {name.removeprefix("encoder."): scale for name, scale in ours.items()} == {
        name: scale for name, scale in theirs.items() if f"encoder.{name}" in ours
    }


def test_an_encoder_without_layers_is_refused_in_one_line() -> None:
    section = OptimizerSection(name="momentum", lr=0.1, weight_decay=0.0, layer_decay=0.7)
    with pytest.raises(RecipeError, match=r"optimizer\.layer_decay: found 0\.7.*expected null"):
        build_optimizer(Objective(None, nn.Linear(2, 2), INFO), section)
