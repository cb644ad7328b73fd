"""What MoCo v3 does to a Vision Transformer before training."""

from __future__ import annotations

from torch import nn


def freeze_patch_embedding(encoder: nn.Module) -> None:
    """Stop the gradients of the patch embedding."""
    encoder.patch_embed.proj.requires_grad_(False)  # type: ignore[union-attr]


def set_sincos_positions(encoder: nn.Module) -> None:
    """Replace the position embedding; see the branch that brings it."""
    raise NotImplementedError
