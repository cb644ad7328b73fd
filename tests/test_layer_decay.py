"""Layer-wise learning rates: which layer a parameter is in, and what its rate is at every step."""

from __future__ import annotations

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

CE = "cifar_resnet20.ce_digits_lt50"


INFO = DataInfo(torch.ones(2, dtype=torch.long))


def built(*changes: str) -> tuple[Objective, Recipe]:
    recipe = Recipe.load(CE, ["optimizer.layer_decay=0.5", *changes])
    return build_objective(recipe, open_dataset(recipe.data, "train", None)), recipe


def settings_by_name(
    objective: Objective, optimizer: torch.optim.Optimizer
) -> dict[str, tuple[float, float]]:
    """Scale and weight decay of each parameter that the optimizer moves."""
    names = {id(parameter): name for name, parameter in objective.named_parameters()}
    return {
        names[id(p)]: (group["lr_scale"], group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }


@pytest.mark.parametrize("everything", ["true", "false"])
def test_what_timm_exempts_by_name_is_exempt_from_decay_and_not_from_its_layer(everything: str) -> None:
    objective, recipe_ = built(
        "name=vit_tiny_patch16_224.x",
        "backbone={arch: vit_tiny_patch16_224, args: {img_size: 8, patch_size: 4, depth: 2}}",
        f"optimizer.decay_norm_and_bias={everything}",
    )
    found = settings_by_name(objective, build_optimizer(objective, recipe_.optimizer))
    assert found["encoder.pos_embed"] == (0.5**3, 0.0)
    assert found["encoder.cls_token"] == (0.5**3, 0.0)
    assert found["encoder.blocks.1.attn.qkv.weight"] == (0.5, recipe_.optimizer.weight_decay)
    norm_decay = recipe_.optimizer.weight_decay if everything == "true" else 0.0
    assert found["encoder.norm.weight"] == (0.5, norm_decay), "timm counts the last norm to the last block"


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
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

    section = OptimizerSection(
        name="momentum", lr=0.1, weight_decay=0.0, momentum=0.9, decay_norm_and_bias=True, layer_decay=0.7
    )
    with pytest.raises(RecipeError, match=r"optimizer\.layer_decay: found 0\.7.*expected null"):
        build_optimizer(Objective(None, Plain(), INFO), section)
