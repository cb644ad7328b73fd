"""What MoCo v3 fixes in a vision transformer: the patch embedding and the position embeddings.

Source: https://arxiv.org/abs/2104.02057, sections 4.2 and 5; github.com/facebookresearch/moco-v3, `vits.py`.
Initial weights are timm's `weight_init: moco`, but for the patch embedding: there the authors have
+-sqrt(6 / (3 p^2 + D)) and a zero bias, timm +-sqrt(1 / (3 p^2)) for both, for p = 16 about half of it.
"""

from typing import Any

import torch
from timm.layers import PatchEmbed, build_sincos2d_pos_embed
from torch import Tensor, nn

from zoo.errors import ZooError


def freeze_patch_embedding(encoder: nn.Module) -> None:
    """Freeze the projection of patches, `patch_embed.proj`; ZooError: for an encoder without one."""
    _patch_embedding(encoder, "freeze_patch_embedding").proj.requires_grad_(False)


@torch.no_grad()
def set_sincos_positions(encoder: nn.Module) -> None:
    """Write fixed two-dimensional sine-cosine values into `pos_embed` of a timm vision transformer.

    With w_i = 10000^(-i / (D / 4)), the D values of the patch in row y and column x of the grid are
    sin(w_i y), cos(w_i y), sin(w_i x), cos(w_i x), a quarter each; those of class and register tokens are
    zero. They are the authors' on a square grid; on another one theirs numbers the patches by column.
    ZooError: for an encoder without position embeddings of its own.
    """
    rows, columns = _patch_embedding(encoder, "sincos_positions").grid_size
    positions = getattr(encoder, "pos_embed", None)
    prefix = positions.shape[1] - rows * columns if isinstance(positions, Tensor) else -1
    # timm's encoders have one for each prefix token or, with `no_embed_class`, none
    if positions is None or prefix not in (0, getattr(encoder, "num_prefix_tokens", 0)):
        lacks = f"no learned position embedding for each of {rows} x {columns} patches"
        raise _unfit("sincos_positions", encoder, lacks)
    grid = build_sincos2d_pos_embed([rows, columns], positions.shape[2], interleave_sin_cos=True)
    positions.zero_()[0, prefix:] = grid
    positions.requires_grad_(False)


def _patch_embedding(encoder: nn.Module, key: str) -> Any:
    embedding = getattr(encoder, "patch_embed", None)
    if not isinstance(embedding, PatchEmbed):
        raise _unfit(key, encoder, "no patch embedding")
    return embedding


def _unfit(key: str, encoder: nn.Module, lacks: str) -> ZooError:
    name = getattr(encoder, "pretrained_cfg", {}).get("architecture") or type(encoder).__name__
    return ZooError(f"{key}: {name} has {lacks}, expected a vision transformer, e.g. vit_small_patch16_224")
