"""Pairs of images mixed, and their labels with them: timm's mixup and cutmix."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from timm.data.mixup import Mixup, cutmix_bbox_and_lam
from torch import Tensor

from zoo.config import Config
from zoo.seeding import seeded_globals


class MixConfig(Config):
    """Pairs of images are mixed, and so are their labels (`timm.data.Mixup`, with its defaults)."""

    mixup: Annotated[float, Field(ge=0)] = 1.0
    """Both weights of the Beta distribution of mixup's share; 0: no mixup (Zhang et al. 2018)."""
    cutmix: Annotated[float, Field(ge=0)] = 0.0
    """Likewise of the pasted box's area (Yun et al. 2019)."""
    probability: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of a batch, pair or image to be mixed at all."""
    switch_probability: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Of cutmix where both are on."""
    mode: Literal["batch", "pair", "elem"] = "batch"
    """What draws a share of its own."""

    @model_validator(mode="after")
    def _mixes(self) -> Self:
        if self.mixup == self.cutmix == 0:
            raise ValueError("mix: found mixup 0 and cutmix 0, expected one above 0, or mix: null")
        return self


class Mixed(NamedTuple):
    """What a batch becomes.

    Attributes:
        images: `[B, 3, H, W]`.
        targets: distributions over classes `[B, C]`, float32.
        dominant: the class with the larger share of each image `[B]`, int64.
    """

    images: Tensor
    targets: Tensor
    dominant: Tensor


class Plan(NamedTuple):
    """What is drawn for a batch: for each image its own share of its label, and how it is mixed.

    Attributes:
        share: of the image's own label `[B]`, float32; the rest is its partner's.
        weight: of the image's own pixels outside the box `[B]`, float32: 1 where a box is pasted.
        rest: of the partner's pixels there, 1 - `weight` `[B]`, float32.
        boxes: the partner's box: top, bottom, left and right in pixels `[B, 4]`, float32; empty for mixup.
    """

    share: NDArray[np.float32]
    weight: NDArray[np.float32]
    rest: NDArray[np.float32]
    boxes: NDArray[np.float32]


def mix(config: MixConfig, images: Tensor, labels: Tensor, num_classes: int) -> Mixed:
    """Mix image i of the batch with image B - 1 - i, and so their labels, as `timm.data.Mixup` does.

    What is drawn follows from torch's CPU generator, which the training seeds by (seed, step, rank): each
    rank, and each of `training.accumulate`'s parts, mixes its own rows among themselves. In an odd batch the
    middle image has no partner and stays. The draws are timm's, on the host; pixels are mixed for the whole
    batch at once, and nothing waits for the device.

    Args:
        config: how.
        images: `[B, 3, H, W]`; not changed.
        labels: classes `[B]`.
        num_classes: C.
    """
    height, width = images.shape[-2:]
    seed = int(torch.randint(2**32, (), dtype=torch.int64))  # from the CPU's generator
    with seeded_globals(seed):
        plan = draw(config, len(images), height, width)
    packed = torch.from_numpy(np.concatenate([np.stack(plan[:3], axis=1), plan.boxes], axis=1))
    if images.is_cuda:
        packed = packed.pin_memory()
    share, weight, rest, *box = packed.to(images.device, non_blocking=True).view(-1, 7, 1, 1).unbind(1)
    rows = torch.arange(height, device=images.device).view(1, height, 1)
    columns = torch.arange(width, device=images.device).view(1, 1, width)
    top, bottom, left, right = box
    inside = ((rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)).unsqueeze(1)
    partner = images.flip(0)
    blended = images * weight.unsqueeze(1) + partner * rest.unsqueeze(1)
    own = torch.arange(num_classes, device=labels.device) == labels[:, None]
    share = share.view(-1, 1)
    targets = own * share + own.flip(0) * (1 - share)
    dominant = torch.where(share.squeeze(1) >= 0.5, labels, labels.flip(0))
    return Mixed(torch.where(inside, partner, blended), targets, dominant)


def draw(config: MixConfig, count: int, height: int, width: int) -> Plan:
    """Draw what happens to `count` images from NumPy's global generator: the numbers that timm draws."""
    mixup = Mixup(
        mixup_alpha=config.mixup,
        cutmix_alpha=config.cutmix,
        prob=config.probability,
        switch_prob=config.switch_probability,
        mode=config.mode,
    )
    boxes = np.zeros((count, 4), dtype=np.float32)
    if config.mode == "batch":
        lam, cut = mixup._params_per_batch()
        weight = np.full(count, lam, dtype=np.float32)
        rest = np.full(count, 1.0 - lam, dtype=np.float32)
        if cut and lam != 1:
            boxes[:], lam = cutmix_bbox_and_lam((height, width), lam)
        share = np.full(count, lam, dtype=np.float32)
        cuts = np.full(count, cut)
    else:
        pairs = config.mode == "pair"
        share, cuts = mixup._params_per_elem(count // 2 if pairs else count)
        weight = share.copy()
        for i in np.flatnonzero(cuts & (share != 1)):
            boxes[i], share[i] = cutmix_bbox_and_lam((height, width), share[i])
        if pairs:  # both of a pair alike; without a partner an image stays
            alone = np.ones(count % 2, dtype=np.float32)
            share, weight = (np.concatenate([each, alone, each[::-1]]) for each in (share, weight))
            cuts = np.concatenate([cuts, alone < 0, cuts[::-1]])
            half = count // 2
            boxes[count - half :] = boxes[:half][::-1]
        rest = 1 - weight
    weight[cuts], rest[cuts] = 1, 0
    return Plan(share, weight, rest, boxes)
