"""MoCo v1 and v2, with the optional feature transformation and the losses of the temperature paper."""

from zoo import functional
from zoo.objectives.base import Batch, Output
from zoo.objectives.config import HardContrastive, HardSimple, InfoNCE, MoCoConfig, Simple
from zoo.objectives.momentum_contrast import WithKeyEncoder


class MoCo(WithKeyEncoder):
    """Instance discrimination against a queue of momentum-encoded keys.
    Source: https://arxiv.org/abs/1911.05722 (v1), https://arxiv.org/abs/2003.04297 (v2); the other losses
    https://arxiv.org/abs/2012.09740.
    """

    Config = MoCoConfig

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view's queries with the second view's keys and the queue."""
        tau = self.config.tau
        _, pairs = self.encode(batch.views)
        q, k, queue, _, valid = after_ft = self.apply_ft(pairs, labelled=False)
        match self.config.loss:
            case InfoNCE():
                loss = functional.info_nce(q, k, queue, tau=tau, valid=valid)
            case HardContrastive(keep=keep):
                loss = functional.hard_contrastive(q, k, queue, tau=tau, keep=keep, valid=valid)
            case Simple(weight=weight):
                loss = functional.simple_contrastive(q, k, queue, weight=weight, valid=valid)
            case HardSimple(weight=weight, keep=keep):
                loss = functional.hard_simple(q, k, queue, weight=weight, keep=keep, valid=valid)
        return Output(loss, {}, carry=pairs.k, observed=pairs.observed(after_ft))
