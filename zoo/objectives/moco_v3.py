"""MoCo v3: symmetric in-batch contrast between a predictor and a momentum encoder; no queue.

Source: https://arxiv.org/abs/2104.02057; github.com/facebookresearch/moco-v3. A ViT's initial weights are
timm's `weight_init: moco`, except in the patch embedding: the authors have +-sqrt(6 / (3 p^2 + D)) and a zero
bias, timm +-sqrt(1 / (3 p^2)) for both, about half as much for p = 16.
"""

from typing import Any

import torch
from timm.layers import PatchEmbed, build_sincos2d_pos_embed
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim, name_of
from zoo.errors import ZooError
from zoo.modules import MomentumEncoder, l2_normalize, projection_head, value_at
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.config import MoCoV3Config


class MoCoV3(Objective):
    """Each view's prediction is contrasted with the other view's keys of the whole batch.

    The loss of one direction is 2 tau CE; the factor makes the gradient's size nearly independent of tau.
    Source: https://arxiv.org/abs/2104.02057, algorithm 1.
    """

    Config = MoCoV3Config

    def __init__(self, config: MoCoV3Config, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        if config.sincos_positions:
            set_sincos_positions(encoder)
        if config.freeze_patch_embedding:
            freeze_patch_embedding(encoder)
        width, dim, layers = feature_dim(encoder), config.dim, config.projector_layers
        normed: dict[str, Any] = {"hidden": config.head_hidden, "batchnorm": True}
        self.projector = projection_head(width, dim, layers=layers, last_batchnorm=True, **normed)
        # two layers without a last bias, as in https://github.com/facebookresearch/moco-v3, moco/builder.py
        last = config.predictor_batchnorm
        self.predictor = projection_head(dim, dim, layers=2, last_batchnorm=last, last_bias=False, **normed)
        self.teacher = MomentumEncoder(nn.Sequential(encoder, self.projector))

    def forward(self, batch: Batch) -> Output:
        """Contrast predictions and keys across the two views, in both directions."""
        tau = self.config.tau
        projected = (self.projector(self.encoder(view)) for view in batch.views)
        q1, q2 = (l2_normalize(self.predictor(each)) for each in projected)
        k1, k2 = (l2_normalize(self.teacher(view)) for view in batch.views)
        others, _ = self.from_others(k1, k2, batch.labels) or (None, None)
        others1, others2 = (None, None) if others is None else others.chunk(2)
        loss = functional.in_batch_info_nce(q1, k2, tau=tau, others=others2)
        loss = loss + functional.in_batch_info_nce(q2, k1, tau=tau, others=others1)
        return Output(2 * tau * loss, {}, observed={"q": q1, "k": k2})

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder."""
        self.teacher.update((self.encoder, self.projector), value_at(self.config.momentum, self.progress))


def freeze_patch_embedding(encoder: nn.Module) -> None:
    """Freeze the projection of patches, `patch_embed.proj`; ZooError for an encoder without one."""
    _patch_embedding(encoder, "freeze_patch_embedding").proj.requires_grad_(False)


@torch.no_grad()
def set_sincos_positions(encoder: nn.Module) -> None:
    """Write fixed two-dimensional sine-cosine values into `pos_embed` of a timm vision transformer.

    With w_i = 10000^(-i / (D / 4)), the D values of the patch in row y and column x of the grid are
    sin(w_i y), cos(w_i y), sin(w_i x), cos(w_i x), a quarter each; class and register tokens get zeros. On a
    square grid this equals the authors' code; on others theirs numbers the patches by column.
    ZooError for an encoder without position embeddings.
    """
    rows, columns = _patch_embedding(encoder, "sincos_positions").grid_size
    patches, positions = rows * columns, getattr(encoder, "pos_embed", None)
    # timm's encoders have one for each prefix token or, with `no_embed_class`, none
    fitting = (patches, patches + getattr(encoder, "num_prefix_tokens", 0))
    if not isinstance(positions, Tensor) or positions.shape[1] not in fitting:
        lacks = f"no learned position embedding for each of {rows} x {columns} patches"
        raise _unfit("sincos_positions", encoder, lacks)
    grid = build_sincos2d_pos_embed([rows, columns], positions.shape[2], interleave_sin_cos=True)
    positions.zero_()[0, -patches:] = grid
    positions.requires_grad_(False)


def _patch_embedding(encoder: nn.Module, key: str) -> Any:
    embedding = getattr(encoder, "patch_embed", None)
    if not isinstance(embedding, PatchEmbed):
        raise _unfit(key, encoder, "no patch embedding")
    return embedding


def _unfit(key: str, encoder: nn.Module, lacks: str) -> ZooError:
    expected = "a vision transformer, e.g. vit_small_patch16_224"
    return ZooError(f"{key}: {name_of(encoder)} has {lacks}, expected {expected}")
