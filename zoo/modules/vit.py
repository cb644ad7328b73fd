"""What MoCo v3 fixes in a vision transformer: the patch embedding and the position embeddings.

Source: Chen, Xie, He 2021, https://arxiv.org/abs/2104.02057, sections 4.2 and 5; authors' code
https://github.com/facebookresearch/moco-v3, `vits.py`.

Initial weights are not touched here, so that an encoder may come from a release. The authors start from
uniform Xavier weights, with query, key and value as three matrices, and zero biases: timm does so with
`weight_init: moco` in the backbone's arguments, except for the patch embedding of p x p pixels. There the
authors have +-sqrt(6 / (3 p^2 + D)) and a zero bias; timm has PyTorch's default of a convolution,
+-sqrt(1 / (3 p^2)) for both, which for p = 16 is 0.5 of the authors' scale with D = 384 and 0.58 with D = 768.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import PatchEmbed, build_sincos2d_pos_embed
from torch import Tensor, nn

from zoo.errors import ZooError


def freeze_patch_embedding(encoder: nn.Module) -> None:
    """Train no weight and no bias of the projection of patches, `patch_embed.proj`: it stays as it is.

    Args:
        encoder: a timm vision transformer; changed in place.

    Raises:
        ZooError: for an encoder without one.
    """
    _patch_embedding(encoder, "freeze_patch_embedding").proj.requires_grad_(False)


@torch.no_grad()
def set_sincos_positions(encoder: nn.Module) -> None:
    """Write fixed two-dimensional sine-cosine values into the position embeddings `pos_embed`.

    With w_i = 10000^(-i / (D / 4)), the D values of the patch in row y and column x of the grid are
    sin(w_i y), cos(w_i y), sin(w_i x), cos(w_i x), a quarter each; those of class and register tokens are
    zero. They are not trained. The authors' code gives the same numbers on a square grid; on another one it
    numbers the patches by column, where timm numbers them by row.

    Args:
        encoder: a timm vision transformer; changed in place.

    Raises:
        ZooError: for an encoder without position embeddings of its own, or whose width D is no multiple of 4.
    """
    key = "sincos_positions"
    rows, columns = _patch_embedding(encoder, key).grid_size
    positions = getattr(encoder, "pos_embed", None)
    prefix = positions.shape[1] - rows * columns if isinstance(positions, Tensor) else -1
    # timm's encoders have one for each prefix token or, with `no_embed_class`, none
    if positions is None or prefix not in (0, getattr(encoder, "num_prefix_tokens", 0)):
        raise ZooError(
            f"{key}: {_name(encoder)} has no learned position embedding for each of its {rows} x {columns} "
            "patches (pos_embed), expected a vision transformer with them, e.g. vit_small_patch16_224"
        )
    dim = positions.shape[2]
    if dim % 4:
        raise ZooError(f"{key}: {_name(encoder)} has {dim} features, expected a multiple of 4")
    positions.zero_()
    positions[0, prefix:] = build_sincos2d_pos_embed([rows, columns], dim, interleave_sin_cos=True)
    positions.requires_grad_(False)


def _patch_embedding(encoder: nn.Module, key: str) -> Any:
    embedding = getattr(encoder, "patch_embed", None)
    if not isinstance(embedding, PatchEmbed):
        raise ZooError(
            f"{key}: {_name(encoder)} has no patch embedding (patch_embed), expected a vision transformer, "
            "e.g. vit_small_patch16_224"
        )
    return embedding


def _name(encoder: nn.Module) -> str:
    return str(getattr(encoder, "pretrained_cfg", {}).get("architecture") or type(encoder).__name__)
