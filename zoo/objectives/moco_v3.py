"""MoCo v3: symmetric in-batch contrast between a predictor and a momentum encoder; no queue."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import MomentumEncoder, Scheduled, Share, Temperature, TemperatureConfig, value_at
from zoo.modules.heads import projection_head
from zoo.modules.vit import freeze_patch_embedding, set_sincos_positions
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.objectives.momentum_contrast import normalize, other_views

Layers = Annotated[int, Field(ge=1)]


class MoCoV3Config(ObjectiveConfig):
    """Momentum contrast for Vision Transformers, whose settings are the defaults, and for ResNets."""

    name: Literal["moco_v3"]
    dim: Annotated[int, Field(ge=1)] = 256
    """D, size of the projection and of the prediction."""
    head_hidden: Annotated[int, Field(ge=1)] = 4096
    """Width between the layers of projector and predictor."""
    projector_layers: Layers = 3
    """The authors': 2 for ResNet-50, 3 for ViT; all with BatchNorm, the last one's without affine."""
    predictor_layers: Layers = 2
    """The authors': 2, with BatchNorm between them."""
    predictor_batchnorm: bool = True
    """BatchNorm without affine after the predictor's last layer; the authors': only for ViT."""
    tau: TemperatureConfig = 0.2
    """Temperature of the scores: a number, a schedule, or learned. The authors': 1 for ResNet-50."""
    momentum: Share = Scheduled(kind="cosine", start=0.99, end=1.0)
    """m of the key encoder; the authors' rises along a cosine from 0.99 to 1."""
    freeze_patch_embedding: bool = True
    """ViT: keep the patch embedding at its random start, which steadies the training."""
    sincos_positions: bool = True
    """ViT: fixed sin-cos position embedding instead of a learned one."""


class MoCoV3(Objective):
    """Each view's prediction is contrasted with the other view's keys of the whole batch.

    The loss of one direction is 2 tau CE; the factor keeps the gradient's size about the same for any tau,
    and is held constant where tau is learned.
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
        width, dim, hidden = feature_dim(encoder), config.dim, config.head_hidden
        layers, predictor_layers = config.projector_layers, config.predictor_layers
        normed: dict[str, Any] = {"hidden": hidden, "batchnorm": True}
        self.projector = projection_head(width, dim, layers=layers, last_batchnorm=True, **normed)
        last = config.predictor_batchnorm
        # no bias, as in https://github.com/facebookresearch/moco-v3, moco/builder.py
        self.predictor = projection_head(
            dim, dim, layers=predictor_layers, last_batchnorm=last, last_bias=False, **normed
        )
        self.teacher = MomentumEncoder(nn.Sequential(encoder, self.projector))
        self.temperature = Temperature(config.tau)

    def forward(self, batch: Batch) -> Output:
        """Contrast predictions and keys across the two views, in both directions."""
        projected = (self.projector(self.encoder(view)) for view in batch.views)
        q1, q2 = (normalize(self.predictor(each)) for each in projected)
        k1, k2 = (normalize(self.teacher(view)) for view in batch.views)
        tau = self.temperature(self.progress)
        scale = 2 * (tau.detach().to(q1.dtype) if isinstance(tau, Tensor) else tau)
        others1, others2 = other_views(self.ranks, k1, k2)
        loss = scale * functional.in_batch_info_nce(q1, k2, tau=tau, others=others2)
        loss = loss + scale * functional.in_batch_info_nce(q2, k1, tau=tau, others=others1)
        metrics = self.temperature.metrics(tau, q1.device)
        return Output(loss, metrics, held={"q": q1, "k": k2, "other_keys": others2})

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder."""
        self.teacher.update((self.encoder, self.projector), value_at(self.config.momentum, self.progress))
