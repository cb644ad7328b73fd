"""What a training on many ranks sends in a step and keeps in memory, by formula.

W ranks, B images of all ranks in a step, n = ceil(B / W) of one, D values of a projection, C classes, K keys.
A ring of W ranks sends, from each, 2 (W - 1) / W of a tensor's bytes to sum it, W - 1 times its own rows to
gather all rows, (W - 1) / W of a tensor to sum it and keep a part, (W - 1) / W of its rows to exchange them.
`tests.benchmarks.communication` compares with what is sent, and prints tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo import backbones
from zoo.modules import MomentumEncoder
from zoo.modules.batchnorm import GHOSTS
from zoo.objectives import OBJECTIVES, DataInfo, Objective
from zoo.recipe import Recipe

FLOAT, LONG = 4, 8

# The network, assumed: a node of 8 GPUs with NVLink, one 400 Gb/s adapter a GPU between nodes; NCCL.
NODE = 8
NVLINK, ADAPTER = 450e9, 50e9  # bytes a second of a GPU, one way
START, HOP, LEVEL = (
    20e-6,
    2e-6,
    15e-6,
)  # seconds: of a collective, of a ring's step, of a tree's between nodes

How = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]


class Message(NamedTuple):
    """One collective, as a rank takes part in it.

    Attributes:
        what: is sent.
        how: by which collective.
        size: bytes of the tensor that is summed, or of this rank's own rows.
        count: how many such collectives a step has.
        hidden: whether it runs while the backward pass does.
    """

    what: str
    how: How
    size: float
    count: int = 1
    hidden: bool = False

    def sent(self, ranks: int) -> float:
        """Bytes that a rank sends in a step."""
        others = ranks - 1
        share = {"all-reduce": 2 * others / ranks, "all-gather": others}.get(self.how, others / ranks)
        return share * self.size * self.count

    def over_gloo(self, ranks: int) -> float:
        """The same with gloo: it sums all where a part would do, and frames its messages."""
        how = "all-reduce" if self.how == "reduce-scatter" else self.how
        steps = (ranks - 1) * (2 if how == "all-reduce" else 1)
        frame = 144 if how == "all-to-all" else 288  # measured: 3 and 6 messages a step, 48 bytes each
        return self._replace(how=how).sent(ranks) + steps * frame * self.count

    def seconds(self, ranks: int) -> float:
        """Time on the network assumed above: the slower of both links, and the way of the first byte."""
        nodes = max(1, ranks // NODE)
        total = self.size * (ranks if self.how == "all-gather" else 1)
        passes = 2 if self.how == "all-reduce" else 1
        within = self.sent(ranks) / self.count / NVLINK
        between = passes * total * (nodes - 1) / nodes / ADAPTER
        if (
            self.how != "all-to-all"
        ):  # a node's adapters share what comes in or goes out once for all its GPUs
            between /= NODE
        way = LEVEL * math.log2(nodes) if self.how == "all-reduce" else HOP * (ranks - 1)
        return self.count * (START + way + max(within, between))


class Model(NamedTuple):
    """What of an objective decides what is sent and kept: numbers of float32 values.

    Attributes:
        trained: parameters with gradients.
        tensors: how many tensors they are.
        following: parameters of the key encoder.
        statistics: running means and variances that each rank moves by its own rows.
        synchronized: channels of each BatchNorm over all ranks, and whether gradients pass it.
        kept: bytes of queue, prototypes and other state that is the same on every rank.
    """

    trained: int
    tensors: int
    following: int
    statistics: int
    synchronized: tuple[tuple[int, bool], ...]
    kept: int


class Kind(NamedTuple):
    """What of an objective's class decides what is sent.

    Attributes:
        passes: of the encoder in a step; of the key encoder, too, where there is one.
        compared: projections of a row that all ranks compare theirs with, sent with their gradients.
        constant: likewise without gradients.
        labels: whether the row's label is sent for the comparison.
        carried: projections of a row that the update needs.
        targets: whether it needs the row's predicted class and its distribution over the classes.
    """

    passes: int
    compared: int = 0
    constant: int = 0
    labels: bool = False
    carried: int = 0
    targets: bool = False


KINDS = {
    "bcl": Kind(1, compared=2, labels=True),
    "moco": Kind(1, carried=1),
    "moco_v3": Kind(2, constant=2),
    "simclr": Kind(2, compared=2),
    "sup_con": Kind(1, compared=1, constant=1, labels=True, carried=1),
    "paco": Kind(1, compared=1, constant=1, labels=True, carried=1),
    "gpaco": Kind(2, compared=2, labels=True, carried=1),
    "pico": Kind(1, compared=1, constant=1, labels=True, carried=2, targets=True),
    "margin": Kind(2, compared=2, labels=True),
    "classify": Kind(1),
}


def model_of(recipe: Recipe, classes: int) -> Model:
    """Count what a recipe trains, without making it."""
    with torch.device("meta"):
        info = DataInfo(torch.ones(classes, dtype=torch.int64), torch.ones(1, classes, dtype=torch.bool))
        encoder = backbones.create(recipe.backbone.arch, **recipe.backbone.args)
        objective = OBJECTIVES[recipe.objective.name](recipe.objective, encoder, info).train()
    following = {
        parameter
        for module in objective.modules()
        if isinstance(module, MomentumEncoder)
        for parameter in module.parameters()
    }
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    norms = [module for module in objective.modules() if isinstance(module, _BatchNorm) and module.training]
    joint = [norm for norm in norms if recipe.training.sync_batchnorm and not isinstance(norm, GHOSTS)]
    buffers = [
        buffer for name, buffer in objective.named_buffers() if "running_" not in name and name != "targets"
    ]
    in_teacher = _norms_of_teacher(objective)
    return Model(
        trained=sum(parameter.numel() for parameter in trained),
        tensors=len(trained),
        following=sum(parameter.numel() for parameter in following),
        statistics=sum(
            2 * norm.num_features for norm in norms if norm not in joint and norm.track_running_stats
        ),
        synchronized=tuple((norm.num_features, norm not in in_teacher) for norm in joint),
        kept=sum(buffer.numel() * buffer.element_size() for buffer in buffers),
    )


def _norms_of_teacher(objective: Objective) -> set[nn.Module]:
    teachers = [module for module in objective.modules() if isinstance(module, MomentumEncoder)]
    return {norm for teacher in teachers for norm in teacher.modules() if isinstance(norm, _BatchNorm)}


def messages(recipe: Recipe, model: Model, classes: int, ranks: int) -> Iterator[Message]:
    """Yield what a step of `recipe` sends, `accumulate` aside; votes and metrics are less than 1 KB."""
    kind, section, config = KINDS[recipe.objective.name], recipe.training, recipe.objective
    rows = -(-section.batch_size // ranks)
    projection = FLOAT * getattr(config, "dim", 0)
    yield Message("gradients", "all-reduce", FLOAT * model.trained, hidden=True)
    if kind.compared:
        yield Message("what is compared", "all-gather", rows * kind.compared * projection)
        yield Message("its gradients", "reduce-scatter", rows * ranks * kind.compared * projection)
    if kind.constant or kind.labels:
        size = rows * (kind.constant * projection + kind.labels * LONG)
        yield Message("keys, labels compared", "all-gather", size)
    if getattr(config, "key_groups", 1) > 1:
        half = FLOAT if section.precision == "fp32" else FLOAT // 2
        pixels = 3 * (recipe.views.train_sizes or [recipe.views.eval.size])[-1] ** 2
        yield Message("images shuffled", "all-to-all", rows * FLOAT * pixels)
        yield Message("their keys", "all-to-all", rows * half * config.dim)
    if model.statistics:
        yield Message("running statistics", "all-reduce", FLOAT * model.statistics)
    for what, how, size, norms in (
        ("BatchNorm forward", "all-gather", 2, model.synchronized),
        ("BatchNorm backward", "all-reduce", 2, [norm for norm in model.synchronized if norm[1]]),
    ):
        if norms:
            channels = sum(channels for channels, _ in norms) / len(norms)
            counts = 1 if how == "all-gather" else 0
            yield Message(what, how, FLOAT * (size * channels + counts), kind.passes * len(norms))
    carried = kind.carried * projection + kind.targets * (LONG + FLOAT * classes)
    yield Message("rows for the update", "all-gather", rows * (2 * LONG + carried))


def memory(recipe: Recipe, model: Model) -> float:
    """Bytes of parameters, gradients, optimizer, key encoder and queue on a rank; activations come on top."""
    moments = 2 if "adam" in recipe.optimizer.name else 1
    state = FLOAT * ((2 + moments) * model.trained + model.following)
    return state + model.kept
