"""The base class of training objectives: a module around the encoder that will be released."""

import re
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import torch
from timm.models._manipulate import group_with_matcher
from torch import Tensor, nn

from zoo.backbones import feature_dim
from zoo.config import type_name
from zoo.data.batches import Batch
from zoo.errors import RecipeError, TrainingError, few
from zoo.modules import Centers, Teacher
from zoo.modules.ranks import ALONE, Ranks
from zoo.objectives.config import ObjectiveConfig

__all__ = ["Batch", "Centers", "DataInfo", "Objective", "ObjectiveConfig", "Output"]


class DataInfo(NamedTuple):
    """Facts about the training data that an objective is built with."""

    class_counts: Tensor  # training images of each class after long-tailed selection [C], int64
    candidates: Tensor | None = None  # possible classes of each image [N, C], bool
    teachers: tuple[Teacher, ...] = ()  # the recipe's teachers in order, classifiers of these classes


class Output(NamedTuple):
    """The result of one forward pass: the loss to minimise, and detached scalars to record.

    `carry` is what `update` needs after the optimizer step, detached: a tensor with one row per image or a
    tuple of them, so that the rows of all ranks can be gathered. `observed` has other values of the step by
    name, from which `zoo.training.observe` computes diagnostics.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    carry: Any = None
    observed: dict[str, Any] | None = None


class Objective(nn.Module):
    """A training objective around the headless backbone `encoder`, which is what gets released.

    One step of the loop is: `output = objective(batch)`; backward; optimizer step;
    `objective.update(batch, output)`. `forward` reads queue and teacher but does not change them. All state
    is in buffers and parameters. A batch has this rank's rows, and the loss is their mean; contrasts within
    the batch include the rows of all `ranks`. `update` receives the rows of all ranks.
    """

    Config: ClassVar[type[ObjectiveConfig]]  # schema of the recipe's section
    epoch: float = 0.0  # fractional epochs done so far; the loop sets it before each step
    progress: float = 0.0  # the same as a share of the whole training, for schedules
    mixes_images: bool = False  # whether images are mixed, so that a gradient belongs to no single class
    ranks: Ranks = ALONE

    def __init__(self, config: Any, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.class_counts = nn.Buffer(info.class_counts, persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; modules that `freeze_encoder` freezes stay in evaluation mode."""
        super().train(mode)
        for part in self.modules():  # including those of key encoders, which are copies
            if getattr(part, "fixed", False):
                part.eval()
        return self

    def join(self, ranks: Ranks) -> None:
        """Make this objective and all its modules part of a training on several ranks."""
        for module in self.modules():
            if hasattr(module, "ranks"):
                module.ranks = ranks  # type: ignore[assignment]  # a plain attribute

    def forward(self, batch: Batch) -> Output:
        """Compute the loss of one batch."""
        raise NotImplementedError

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Update teacher, queue and similar state; called after the optimizer step."""

    def from_others(self, a: Tensor, b: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the other ranks' rows of both views, with gradient, and their labels; None with one rank."""
        if self.ranks.alone:
            return None
        rows = self.ranks.gather_others(torch.cat([a, b], dim=1)).chunk(2, dim=1)
        return torch.cat(rows), self.ranks.gather_others(labels).repeat(2)

    def no_weight_decay(self) -> set[str]:
        """Return the parameters that are exempt from weight decay: timm's exemptions in the encoder."""
        return {f"encoder.{name}" for name in getattr(self.encoder, "no_weight_decay", set)()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[float]] | None:
        """Return a function from parameter names to layers, for timm's layer-wise learning rates, or None.

        The encoder's layers are those of its own `group_matcher`, numbered as in the same model with a
        classifier; all other parameters of the objective count as the classifier's layer, the topmost.
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
        """Return facts about the trained state for `metrics.json`, given the images' true classes `[N]`."""
        return {}

    def centers(self) -> Centers | None:
        """Return the learned class centers, or None for objectives without."""
        return None


def construct(
    kind: type[Objective], config: ObjectiveConfig, encoder: nn.Module, info: DataInfo
) -> Objective:
    """Build an objective, and check what a release of it will need; RecipeError says what is wrong."""
    try:
        made = kind(config.model_copy(deep=True), encoder, info)  # the recipe stays as it is
    except (AttributeError, RuntimeError) as error:
        needed = re.search(r"allocate (\d+) bytes", str(error))
        if needed is None and "before Module.__init__()" not in str(error):
            raise
        if needed is None:
            raise RecipeError("objective: call super().__init__(config, encoder, info) first") from None
        raise RecipeError(f"objective: {int(needed[1]):,} bytes do not fit: queue_size, dim") from None
    if getattr(made, "encoder", None) is not encoder:
        expected = "the one that super().__init__ sets; layers of your own go beside it"
        raise RecipeError(f"{kind.__name__}.encoder: found another, expected {expected}")
    centers, shape = made.centers(), [len(info.class_counts), feature_dim(encoder)]
    found = [] if centers is None else [[*getattr(each, "shape", ())] for each in centers[:2]]
    if found and (not isinstance(centers, Centers) or found != [shape, shape[:1]]):
        raise RecipeError(f"{kind.__name__}.centers: found {found}, expected Centers of {shape}, {shape[:1]}")
    return made


def checked(output: Any, objective: nn.Module) -> Output:
    """Return what `objective.forward` returned, metrics detached; TrainingError if it is no `Output`."""
    where = f"{type(objective).__name__}.forward"
    if not isinstance(output, Output):
        raise TrainingError(f"{where}: found {type_name(output)}, expected Output(loss, metrics)")
    metrics = output.metrics or {}
    scalars = {"loss": output.loss, **metrics}
    if odd := [str(key) for key, each in scalars.items() if not isinstance(each, Tensor) or each.ndim]:
        raise TrainingError(f"{where}: found {few(odd)} of another kind, expected tensors without dimensions")
    if not output.loss.requires_grad:
        raise TrainingError(f"{where}: found a loss without gradient; is anything trained?")
    return output._replace(metrics={name: each.detach() for name, each in metrics.items()})


def train_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the accuracy `[]` of logits `[B, C]` against labels `[B]`, in percent."""
    return 100 * (logits.detach().argmax(dim=1) == labels).float().mean()


def share_of_weight(weights: Tensor, ranks: Ranks) -> Tensor:
    """Return this rank's mean weight divided by that of all ranks `[]`, float64, for image `weights` `[n]`.

    With this factor the average of the ranks' weighted means is the weighted mean over all images.
    """
    own = weights.double()
    return own.mean() / ranks.gather(own).mean().clamp(min=torch.finfo(torch.double).tiny)
