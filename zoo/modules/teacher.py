"""A trained classifier that is asked and never trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.modules.centers import Centers


class Normalization(NamedTuple):
    """How pixels in 0..1 became a network's input: (x - mean) / std, of red, green and blue."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Teacher(nn.Module):
    """An encoder with its centers as the classifier: images `[B, 3, H, W]` to logits `[B, C]`.

    It is always in evaluation mode and never gets gradients. All of it is state, so that who goes on with a
    training has the teachers it began with, and can say which they were.

    Args:
        encoder: headless, `[B, 3, H, W] -> [B, D_f]`; kept, not copied.
        centers: of the classes that are asked for, in their order.
        own: how images were normalised where the encoder learned.
        given: how those are normalised that it is asked about.
        sha256: what tells it from other teachers, as 64 hexadecimal digits.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor
    digest: Tensor

    def __init__(
        self, encoder: nn.Module, centers: Centers, *, own: Normalization, given: Normalization, sha256: str
    ) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.register_buffer("weight", centers.weight.detach().float())
        self.register_buffer("bias", centers.bias.detach().float())
        self.register_buffer("scale", _channels(given.std) / _channels(own.std))
        self.register_buffer("shift", (_channels(given.mean) - _channels(own.mean)) / _channels(own.std))
        self.register_buffer("digest", torch.tensor([*bytes.fromhex(sha256)], dtype=torch.uint8))
        self.eval()

    @property
    def sha256(self) -> str:
        """What it was told apart by when the training began."""
        return bytes(self.digest.tolist()).hex()

    def train(self, mode: bool = True) -> Teacher:
        """Stay in evaluation mode, whatever is asked for."""
        del mode
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return logits, in float32 under autocast too; see `full_logits`."""
        features = self.encoder(images * self.scale + self.shift)
        with torch.autocast(features.device.type, enabled=False):
            return nn.functional.linear(features.to(self.weight.dtype), self.weight, self.bias)


def _channels(values: Sequence[float]) -> Tensor:
    return torch.tensor(values).view(1, 3, 1, 1)
