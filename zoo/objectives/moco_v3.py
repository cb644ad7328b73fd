"""MoCo v3: symmetric in-batch contrast between a predictor and a momentum encoder; no queue."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import MomentumEncoder, Scheduled, Share, Tau, projection_head, unit_rows, value_at
from zoo.modules.vit import freeze_patch_embedding, set_sincos_positions
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output


class MoCoV3Config(ObjectiveConfig):
    """Momentum contrast for Vision Transformers, whose settings are the defaults, and for ResNets."""

    name: Literal["moco_v3"]
    dim: Annotated[int, Field(ge=1, le=1 << 31)] = 256
    """D, size of the projection and of the prediction."""
    head_hidden: Annotated[int, Field(ge=1)] = 4096
    """Width between the layers of projector and predictor."""
    projector_layers: Annotated[int, Field(ge=1)] = 3
    """The authors': 2 for ResNet-50, 3 for ViT; all with BatchNorm, the last one's without affine."""
    predictor_batchnorm: bool = True
    """BatchNorm without affine after the predictor's last layer; the authors': only for ViT."""
    tau: Tau = 0.2
    """Temperature, by which scores are divided. The authors': 1 for ResNet-50."""
    momentum: Share = Scheduled(kind="cosine", start=0.99, end=1.0)
    """m of the key encoder; the authors' rises along a cosine from 0.99 to 1."""
    freeze_patch_embedding: bool = True
    """ViT: keep the patch embedding at its random start, which steadies the training."""
    sincos_positions: bool = True
    """ViT: fixed sin-cos position embedding instead of a learned one."""


class MoCoV3(Objective):
    """Each view's prediction is contrasted with the other view's keys of the whole batch.

    The loss of one direction is 2 tau CE; the factor keeps the gradient's size about the same for any tau.
    Source: https://arxiv.org/abs/2104.02057, algorithm 1.
    """

    Config = MoCoV3Config
    num_views = 2
    without_labels = True

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
        q1, q2 = (unit_rows(self.predictor(each)) for each in projected)
        k1, k2 = (unit_rows(self.teacher(view)) for view in batch.views)
        others, _ = self.from_others(k1, k2, batch.labels) or (None, None)
        others1, others2 = (None, None) if others is None else others.chunk(2)
        loss = functional.in_batch_info_nce(q1, k2, tau=tau, others=others2)
        loss = loss + functional.in_batch_info_nce(q2, k1, tau=tau, others=others1)
        return Output(2 * tau * loss, {}, held={"q": q1, "k": k2})

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder."""
        self.teacher.update((self.encoder, self.projector), value_at(self.config.momentum, self.progress))
