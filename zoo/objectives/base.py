"""What every training objective is: a module around the encoder that is to be released."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import torch
from timm.models._manipulate import group_with_matcher
from torch import Tensor, nn

from zoo.data.batches import Batch
from zoo.modules import Centers, Teacher
from zoo.modules.ranks import ALONE, Ranks
from zoo.objectives.config import ObjectiveConfig

__all__ = ["Batch", "Centers", "DataInfo", "Objective", "ObjectiveConfig", "Output"]


class DataInfo(NamedTuple):
    """What an objective may know about the training data before it sees any."""

    class_counts: Tensor  # training images of each class after long-tailed selection [C], int64
    candidates: Tensor | None = None  # classes that are possible for each image [N, C], bool
    teachers: tuple[Teacher, ...] = ()  # classifiers of these classes that the recipe names, in its order


class Output(NamedTuple):
    """What one forward pass gives: the loss to minimise, and detached scalars to record.

    `carry` is what `update` needs after the optimizer step, detached: a tensor with one row per image, or a
    tuple of such, so that the rows of all ranks can be joined. Of `held`, other values of the step by
    name, `zoo.training.observe` computes the run's figures.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    carry: Any = None
    held: dict[str, Any] | None = None


class Objective(nn.Module):
    """A training objective around the headless backbone `encoder`, which is what a training releases.

    One step of the loop is: `output = objective(batch)`; backward; optimizer step;
    `objective.update(batch, output)`. `forward` reads queue and teacher and changes neither. All state is in
    buffers and parameters. A batch is this rank's rows, the loss their mean; contrasts within the batch reach
    over all `ranks`. `update` gets the rows of all.
    """

    Config: ClassVar[type[ObjectiveConfig]]  # schema of the recipe's section
    num_views: ClassVar[int]  # of an image in a batch; zoo's own objectives have it in their Config
    from_candidates: ClassVar[bool] = False  # whether it learns from `data.partial_labels`
    without_labels: ClassVar[bool] = False  # whether it learns where the label of every image is -1
    epoch: float = 0.0  # how far training is, with fraction; the loop sets it before each step
    progress: float = 0.0  # the same as a share of the whole training; schedules read it
    mixes_images: bool = False  # whether an image's gradient is of no one class
    learns_centers: ClassVar[bool] = False  # whether it has `centers`
    ranks: Ranks = ALONE
    class_counts: Tensor

    def __init_subclass__(cls) -> None:
        cls.learns_centers = cls.centers is not Objective.centers

    def __init__(self, config: Any, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.register_buffer("class_counts", info.class_counts, persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; parts that `train_only` or `adapt` keep as they are stay in evaluation mode."""
        super().train(mode)
        for part in self.modules():  # of key encoders too, which are copies
            if getattr(part, "fixed", False):
                part.eval()
        return self

    def join(self, ranks: Ranks) -> None:
        """Train as one of several ranks: this objective and every part that has to know."""
        for module in self.modules():
            if hasattr(module, "ranks"):
                module.ranks = ranks  # type: ignore[assignment]  # a plain attribute

    def forward(self, batch: Batch) -> Output:
        """Compute the loss of one batch."""
        raise NotImplementedError

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move teacher, queue and the like; called after the optimizer step."""

    def from_others(self, a: Tensor, b: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the other ranks' rows of both views, with gradient, and their labels; None with one rank."""
        if self.ranks.alone:
            return None
        rows = self.ranks.others(torch.cat([a, b], dim=1)).chunk(2, dim=1)
        return torch.cat(rows), self.ranks.others(labels).repeat(2)

    def no_weight_decay(self) -> set[str]:
        """Name what weight decay leaves alone: timm's exemptions in the encoder."""
        return {f"encoder.{name}" for name in getattr(self.encoder, "no_weight_decay", set)()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[float]] | None:
        """Return a parameter's layer by its name, for timm's layer-wise learning rates; None without layers.

        The encoder's are those of its own `group_matcher`, numbered as in the same model with a classifier;
        whatever else the objective has is in the classifier's, one layer above them.
        """
        own = getattr(self.encoder, "group_matcher", None)
        if own is None:
            return None
        classifier = getattr(self.encoder, "pretrained_cfg", {}).get("classifier") or "head"
        name = classifier if isinstance(classifier, str) else classifier[0]
        named = [*self.encoder.named_parameters(), (f"{name}.weight", None)]
        layers = group_with_matcher(iter(named), own(coarse=coarse), reverse=True)
        top = max(layers.values())
        of_name = {f"encoder.{name}": float(layer) for name, layer in layers.items()}
        return lambda name: (of_name.get(name, float(top)),)

    def facts(self, labels: Tensor) -> dict[str, Any]:
        """Return facts of the trained state for `metrics.json`, given the images' true classes `[N]`."""
        return {}

    def centers(self) -> Centers | None:
        """Return the learned class centers, or None for objectives without."""
        return None


def train_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many of the logits `[B, C]` are largest at the label `[B]`, in percent `[]`."""
    return 100 * (logits.detach().argmax(dim=1) == labels).float().mean()


def share_of_weight(weights: Tensor, ranks: Ranks) -> Tensor:
    """Return this rank's mean weight over that of all ranks `[]`, float64, given its images' `weights` `[n]`.

    The factor that makes the average of the ranks' weighted means the weighted mean over all images.
    """
    own = weights.double()
    return own.mean() / ranks.gather(own).mean().clamp(min=torch.finfo(torch.double).tiny)
