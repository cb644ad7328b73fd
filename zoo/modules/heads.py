"""Projection heads and classifiers on top of the encoder, and a trained classifier as teacher."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.functional.checks import to_float32
from zoo.modules.centers import Centers
from zoo.modules.momentum import KeyQueue, MomentumEncoder


def projection_head(
    in_features: int,
    out_features: int,
    *,
    layers: int,
    hidden: int,
    batchnorm: bool,
    last_batchnorm: bool = False,
    last_bias: bool = True,
    running_statistics: bool = True,
) -> nn.Sequential:
    """Build `layers` linear layers with ReLU in between: `[B, in_features]` to `[B, out_features]`.

    One layer is MoCo v1's head, two with `hidden` units between are the MLP of MoCo v2 and PaCo. `batchnorm`
    adds BatchNorm before every ReLU (PaCo on CIFAR), `last_batchnorm` after the last layer, without affine
    parameters (MoCo v3). `last_bias` has no effect with `last_batchnorm`. Without `running_statistics`,
    BatchNorm uses batch statistics in evaluation mode too.
    """
    head = nn.Sequential()
    *inner, last = pairwise([in_features, *[hidden] * (layers - 1), out_features])
    for before, after in inner:
        head.append(nn.Linear(before, after, bias=not batchnorm))
        if batchnorm:
            head.append(nn.BatchNorm1d(after, track_running_stats=running_statistics))
        head.append(nn.ReLU(inplace=True))
    head.append(nn.Linear(*last, bias=last_bias and not last_batchnorm))
    if last_batchnorm:
        head.append(nn.BatchNorm1d(out_features, affine=False, track_running_stats=running_statistics))
    return head


def l2_normalize(projected: Tensor) -> Tensor:
    """Scale rows `[B, D]` to unit length, in at least float32, even under autocast."""
    return F.normalize(to_float32(projected), dim=1)


def full_logits(classifier: nn.Module, features: Tensor) -> Tensor:
    """Return a classifier's logits `[B, C]` for features `[B, D]`, in float32 even under autocast."""
    with torch.autocast(features.device.type, enabled=False):
        return classifier(to_float32(features))  # type: ignore[no-any-return]


class CosineClassifier(nn.Module):
    """Cosine similarity of features `[B, D]` and the weights of C classes: `[B, C]`; see `full_logits`.

    Source, including the initialisation: github.com/kaidic/LDAM-DRW (models/resnet_cifar.py, NormedLinear).
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(F.normalize(torch.rand(classes, features) * 2 - 1, dim=1))
        self.running_norm = nn.Buffer(torch.ones(()))  # moving average of the features' norm in training

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.running_norm.lerp_(features.detach().norm(dim=1).mean(), 0.1)
        return F.linear(l2_normalize(features), l2_normalize(self.weight))


class ScaledClassifier(nn.Linear):
    """A frozen linear classifier, `[B, D]` to `[B, C]`, with a learned scale for each class (LWS).

    Source: https://arxiv.org/abs/1910.09217; github.com/facebookresearch/classifier-balancing (with bias).
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(classes))

    def scaled(self) -> tuple[Tensor, Tensor]:
        """Return the equivalent linear classifier: weight `[C, D]`, bias `[C]`."""
        return self.weight * self.scale[:, None], self.bias * self.scale

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, *self.scaled())


@torch.no_grad()
def as_linear(classifier: nn.Module) -> tuple[Tensor, Tensor]:
    """Return weight `[C, D]` and bias `[C]`, detached, of a linear classifier with the same predictions.

    For a cosine classifier these are its unit weights divided by the typical norm of features: an image's own
    norm does not change the order of classes, and logits are close to the cosines seen in training.
    """
    if isinstance(classifier, ScaledClassifier):
        return classifier.scaled()
    if isinstance(classifier, CosineClassifier):
        weight = F.normalize(classifier.weight, dim=1) / classifier.running_norm
        return weight, torch.zeros_like(weight[:, 0])
    return classifier.weight.detach(), classifier.bias.detach()  # type: ignore[operator]


Normalization = tuple[Sequence[float], Sequence[float]]  # mean and std by channel, for pixels in 0..1


class Teacher(nn.Module):
    """An encoder with its centers as the classifier: images `[B, 3, H, W]` to logits `[B, C]`.

    Always in evaluation mode and without gradients; part of the state, so that a resumed training keeps it.

    Args:
        encoder: headless, `[B, 3, H, W] -> [B, D_f]`; used directly, not copied.
        centers: one for each class to predict, in the order of the classes.
        own: the normalisation that the encoder was trained with; `given`: the normalisation of its inputs.
        sha256: of the teacher's release, 64 hexadecimal digits.
    """

    def __init__(
        self, encoder: nn.Module, centers: Centers, *, own: Normalization, given: Normalization, sha256: str
    ) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.weight = nn.Buffer(centers.weight.detach().float())
        self.bias = nn.Buffer(centers.bias.detach().float())
        mean, std, own_mean, own_std = (torch.tensor(each).view(1, 3, 1, 1) for each in (*given, *own))
        self.scale = nn.Buffer(std / own_std)
        self.shift = nn.Buffer((mean - own_mean) / own_std)
        self.digest = nn.Buffer(torch.tensor([*bytes.fromhex(sha256)], dtype=torch.uint8))
        self.eval()

    @property
    def sha256(self) -> str:
        """The hash of the teacher at the start of the training."""
        return bytes(self.digest.tolist()).hex()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        features = self.encoder(images * self.scale + self.shift)
        with torch.autocast(features.device.type, enabled=False):  # as `full_logits`
            return F.linear(features.to(self.weight.dtype), self.weight, self.bias)


def ema_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a module's state that an EMA averages, by name; not copies."""
    released, live = released_state(module), (*module.named_parameters(), *module.named_buffers())
    return {n: each for n, each in live if n in released and (each.requires_grad or ".running_" in n)}


def released_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state that is released, without queues, key encoders and teachers."""
    kinds = (KeyQueue, MomentumEncoder, Teacher)
    others = tuple(f"{name}." for name, part in module.named_modules() if isinstance(part, kinds))
    return {name: value for name, value in module.state_dict().items() if not name.startswith(others)}
