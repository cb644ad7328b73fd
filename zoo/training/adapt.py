"""Parameter-efficient fine-tuning: select parameters by name, or add low-rank adapters to layers.

Sources: BitFit (biases alone), Zaken et al. 2021, https://arxiv.org/abs/2106.10199; LoRA, Hu et al. 2021,
https://arxiv.org/abs/2106.09685, by Hugging Face's `peft`.
"""

import fnmatch
import re
from collections.abc import Collection, Sequence
from typing import Any

import torch
from timm.layers import Conv2dSame
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.errors import RecipeError, did_you_mean, few
from zoo.recipe import Recipe
from zoo.recipe.sections import LoRASection

# exact types only: a subclass may transform its weight before use, which an adapter would bypass
_LAYERS = (nn.Linear, nn.Conv2d, Conv2dSame)


def freeze_encoder(encoder: nn.Module, recipe: Recipe) -> None:
    """Freeze all that `train_only` and `adapt` do not select, and BatchNorm if `fixed_batchnorm`.

    Fully frozen modules stay in evaluation mode, so that BatchNorm statistics do not move either.
    RecipeError if a pattern matches nothing, a layer supports no adapter, or `peft` is not installed.
    """
    own, otherwise = dict(encoder.named_parameters()), ["*"] if recipe.adapt is None else []
    names = otherwise if recipe.train_only is None else recipe.train_only
    trained = _matching(own, names, "train_only", "parameter")
    if recipe.adapt is not None:
        _add_adapters(encoder, recipe.adapt)
    for name, parameter in own.items():
        parameter.requires_grad_(name in trained)
    kept = {part for part in encoder.modules() if recipe.fixed_batchnorm and isinstance(part, _BatchNorm)}
    nn.ModuleList(kept).requires_grad_(False)
    for part in encoder.modules():
        flags = {parameter.requires_grad for parameter in part.parameters()}
        part.fixed = flags == {False} or part in kept  # type: ignore[assignment]  # see `Objective.train`


def _add_adapters(encoder: nn.Module, lora: LoRASection) -> None:
    try:
        import peft  # slow to import
    except ModuleNotFoundError:
        raise RecipeError('adapt: needs the package peft: pip install "contrastive-zoo[peft]"') from None
    named: dict[str, Any] = dict(encoder.named_modules())
    layers = {n: m for n, m in named.items() if type(m) in _LAYERS and getattr(m, "groups", 1) == 1}
    if lora.target is None:
        sizes = {name: (len(layer.weight), layer.weight[0].numel()) for name, layer in layers.items()}
        chosen = {name for name, (out, into) in sizes.items() if lora.rank * (out + into) < out * into}
    else:
        chosen = _matching(layers, lora.target, "adapt.target", "linear layer or ungrouped convolution")
    if not chosen:
        raise RecipeError(f"adapt.rank: found {lora.rank}, by which no adapter is smaller than its layer")
    # one regular expression: peft matches the names in a list as suffixes too
    target = "|".join(map(re.escape, sorted(chosen)))
    peft.inject_adapter_in_model(
        peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=target), encoder
    )


def merge_adapters(encoder: nn.Module) -> None:
    """Merge adapters, if any, into timm's own layers; outputs stay the same up to rounding."""
    for name, layer in dict[str, Any](encoder.named_modules()).items():
        if hasattr(layer, "lora_A"):
            layer.to(memory_format=torch.contiguous_format)  # rounding may depend on the layout
            layer.merge()
            encoder.set_submodule(name, layer.get_base_layer())
    vars(encoder).pop("peft_config", None)


def _matching(known: Collection[str], patterns: Sequence[str], key: str, kind: str) -> set[str]:
    """Return the names that match any of the patterns; every pattern must match at least one name."""
    found = {pattern: fnmatch.filter(known, pattern) for pattern in patterns}
    if unmatched := [pattern for pattern, names in found.items() if not names]:
        text = f'{key}: "{unmatched[0]}" matches no {kind} of the encoder, which has {few([*known])}'
        raise RecipeError(f"{text}.{did_you_mean(unmatched[0], known)}")
    return {name for names in found.values() for name in names}
