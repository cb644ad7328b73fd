"""Weight decay and layer-wise learning rates: who is exempt, and which layer a parameter is in."""

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
ARCH = "vit_tiny_patch16_224"
VIT = f"{{arch: {ARCH}, args: {{img_size: 8, patch_size: 4, depth: 2}}}}"


@pytest.mark.parametrize("layer_decay", ["null", "0.5"])
@pytest.mark.parametrize("everything", ["true", "false"])
def test_what_timm_exempts_from_decay_keeps_its_layer(everything: str, layer_decay: str) -> None:
    changes = [f"optimizer.layer_decay={layer_decay}", f"optimizer.decay_norm_and_bias={everything}"]
    recipe = Recipe.load("cifar_resnet20.ce_digits_lt50", [*changes, f"backbone={VIT}", f"name={ARCH}.x"])
    objective = build_objective(recipe, open_dataset(recipe.data, "train", None))
    names = {id(parameter): name for name, parameter in objective.named_parameters()}
    groups = build_optimizer(objective, recipe.optimizer).param_groups
    found = {names[id(p)]: (g.get("lr_scale", 1), g["weight_decay"]) for g in groups for p in g["params"]}
    assert found.keys() == {*names.values()}
    own, decay = 0.5 if layer_decay == "0.5" else 1, recipe.optimizer.weight_decay
    assert found["encoder.pos_embed"] == found["encoder.cls_token"] == (own**3, 0.0)
    assert found["encoder.blocks.1.attn.qkv.weight"] == (own, decay)
    assert found["classifier.weight"] == (1, decay)  # the released centers
    # timm counts the last norm to the last block
    assert found["encoder.norm.weight"] == (own, decay if everything == "true" else 0.0)
    assert found["classifier.bias"] == (1, decay if everything == "true" else 0.0)


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
