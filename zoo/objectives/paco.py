"""PaCo and GPaCo: supervised contrast with learnable, rebalanced class centers.

GPaCo has no key encoder: both views are anchors and get gradients.
"""

import torch
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import Centers, as_linear, full_logits
from zoo.objectives.base import Batch, DataInfo, Output, train_accuracy
from zoo.objectives.config import CenterConfig, GPaCoConfig, PaCoConfig
from zoo.objectives.momentum_contrast import Pairs, WithKeyEncoder, WithQueue


class ParametricContrast(WithQueue):
    """What PaCo and GPaCo share: a loss of samples and learned centers together."""

    def __init__(self, config: CenterConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        # its rows are the class centers
        self.classifier = nn.Linear(feature_dim(encoder), len(info.class_counts))
        prior = functional.log_prior(info.class_counts)
        self.log_prior = nn.Buffer(prior if config.rebalance else torch.zeros_like(prior))

    def contrast_with_centers(self, batch: Batch, pairs: Pairs, *features: Tensor) -> Output:
        """Return the loss over the first view's anchors, or over both views' if both `features` are given.

        The pairs are samples G(x) of both views, and the queue; features are pooled, `[B, D_f]`.
        """
        config, labels = self.config, batch.labels
        q, k, queue, queue_labels, _ = after_ft = self.apply_ft(pairs, labelled=True)
        others = self.from_others(q, k, labels)
        logits = [full_logits(self.classifier, x) for x in features]  # c . F(x), without the prior
        names = {"tau", "alpha", "beta", "gamma", "center_tau", "reduction", "label_smoothing"}
        settings = config.model_dump(include=names)

        def loss(q: Tensor, k: Tensor, logits: Tensor) -> Tensor:
            given = (q, k, labels, queue, queue_labels, logits, self.log_prior)
            return functional.paco(*given, **settings, others=others)

        total = loss(q, k, logits[0])
        if len(logits) == 2:  # A(i) is the same set for both views' anchors
            total = 0.5 * (total + loss(k, q, logits[1]))
        metrics = {"train_accuracy": train_accuracy(logits[0], labels)}
        more = pairs.observed(after_ft, classes=labels, tau=config.tau, center_logits=logits[0])
        return Output(total, metrics, carry=pairs.k.detach(), observed=more)

    def centers(self) -> Centers:
        """Return the centers learned so far."""
        return Centers(*as_linear(self.classifier), self.class_counts)


class PaCo(ParametricContrast, WithKeyEncoder):
    """MoCo with labels, whose softmax also includes one learnable center per class.
    Source: https://arxiv.org/abs/2107.12028.
    """

    Config = PaCoConfig

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view with the second's keys, the batch itself, the queue and the centers."""
        features, pairs = self.encode(batch.views)
        return self.contrast_with_centers(batch, pairs, features)


class GPaCo(ParametricContrast):
    """Samples of both views and the queue are contrasted with each other and with the class centers.

    The queue holds the encoder's projections of earlier second views, without gradient. Authors' settings: a
    head of three layers without BatchNorm, and label smoothing.
    Source: https://arxiv.org/abs/2209.12400; GPaCo/LT/moco/builder.py in
    https://github.com/dvlab-research/Parametric-Contrastive-Learning.
    """

    Config = GPaCoConfig

    def forward(self, batch: Batch) -> Output:
        """Contrast each view's samples with the other view, the batch itself, the queue and the centers."""
        # one pass per view, as the authors do, so that BatchNorm has separate statistics for each
        first, second = (self.encoder(view) for view in batch.views)
        pairs = self.pair(self.head(first), self.head(second))
        return self.contrast_with_centers(batch, pairs, first, second)
