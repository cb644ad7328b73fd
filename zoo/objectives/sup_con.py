"""SimCLR and SupCon: contrast of two views, without and with labels; no class centers."""

from zoo import functional
from zoo.modules import l2_normalize
from zoo.objectives.base import Batch, Output, share_of_weight
from zoo.objectives.config import SimCLRConfig, SupConConfig
from zoo.objectives.momentum_contrast import TwoViews, WithKeyEncoder


class SimCLR(TwoViews):
    """Instance discrimination within the batch, both views with gradient.
    Source: https://arxiv.org/abs/2002.05709.
    """

    Config = SimCLRConfig

    def forward(self, batch: Batch) -> Output:
        """Contrast every view with the batch's 2B - 1 others."""
        a, b = (l2_normalize(self.head(self.encoder(view))) for view in batch.views)
        others, _ = self.from_others(a, b, batch.labels) or (None, None)
        loss = functional.in_batch_info_nce(a, b, tau=self.config.tau, both_views=True, others=others)
        return Output(loss, {}, observed={"q": a, "k": b})


class SupCon(WithKeyEncoder):
    """All images of the anchor's class in the batch and the queue are positives.
    Source: https://arxiv.org/abs/2004.11362, equation 2; with a queue in https://arxiv.org/abs/2107.12028,
    section 3.1.
    """

    Config = SupConConfig

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view with the second's keys, the batch itself and the queue."""
        labels, tau = batch.labels, self.config.tau
        _, pairs = self.encode(batch.views)
        q, k, queue, queue_labels, _ = after_ft = self.apply_ft(pairs, labelled=True)
        others = self.from_others(q, k, labels)
        loss = functional.sup_con(q, k, labels, queue, queue_labels, tau=tau, others=others)
        loss = loss * share_of_weight(labels >= 0, self.ranks).to(loss)  # so the mean is over labelled images
        return Output(loss, {}, carry=pairs.k, observed=pairs.observed(after_ft, classes=labels, tau=tau))
