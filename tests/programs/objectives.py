"""Started by torchrun in tests/test_ranks_objectives.py: every objective on several ranks and on one.

Each rank trains two copies of an objective: one with its rows of each batch, as the training loop does on
several ranks (whose own step tests/programs/steps.py tries), and one with the whole batch, as on one. Rank 0
prints a line per case: its name, the largest relative difference between the two in losses, metrics,
gradients and state, and whether all ranks hold the same bits. With more than two ranks only a few of the
cases, and then what tests/programs/sync_batchnorm.py checks.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from tests.objective_helpers import CANDIDATES, FT, INFO, LABELS, config
from tests.programs import sync_batchnorm
from zoo.modules import Centers, Normalization, Teacher, running_statistics, synchronize_batchnorm
from zoo.objectives import OBJECTIVES, Batch, Objective, Output
from zoo.ranks import Ranks
from zoo.training.distributed import join
from zoo.seeding import derive_seed
from zoo.training.step import gathered

SIDE = 4  # pixels
FEW = (
    "bcl",
    "classify smoothed",
    "classify ldam",
    "classify taught",
    "gpaco ft",
    "margin class",
    "moco ft dimension union",
    "moco groups ft",
    "moco_v3",
    "paco smoothed",
    "paco groups",
    "pico sync",
    "simclr",
    "sup_con ft",
)
"""Cases for three ranks: each objective once or twice."""


class Encoder(nn.Sequential):
    """A network of a few hundred parameters, with BatchNorm of several kinds or without."""

    num_features = 6

    def __init__(self, batchnorm: bool) -> None:
        wide = 3 * SIDE * SIDE
        layers = [nn.Flatten(), nn.Linear(wide, 10), nn.ReLU(), nn.Linear(10, 6)]
        if batchnorm:
            layers = [nn.Conv2d(3, 5, 3, padding=1), BatchNormAct2d(5), nn.Conv2d(5, 4, 3), nn.BatchNorm2d(4)]
            layers += [nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, 6), nn.BatchNorm1d(6), nn.ReLU()]
        super().__init__(*layers)


PLAIN = dict(head_batchnorm=False)
LDAM = dict(name="ldam", max_margin=0.5, scale=30.0, reweight_from=0.0, beta=0.9)
LEARNED = dict(tau={"kind": "learned", "start": 0.2, "min": 0.05, "max": 1.0})


def transformed(per: str, keep_originals: bool = False, renormalize: bool = False) -> dict[str, Any]:
    ft = copy.deepcopy(FT) | {"renormalize": renormalize, "start_epoch": 1}
    ft["positives"]["per"] = ft["negatives"]["per"] = per
    ft["negatives"]["keep_originals"] = keep_originals
    return PLAIN | dict(feature_transform=ft)


def moco_loss(name: str, **more: Any) -> dict[str, Any]:
    return PLAIN | dict(loss=dict(name=name, **more))


def cases(size: int) -> dict[str, tuple[str, bool, dict[str, Any]]]:
    """Name -> (objective, whether the encoder has BatchNorm, changes of the settings)."""
    found: dict[str, tuple[str, bool, dict[str, Any]]] = {
        "bcl": ("bcl", False, {}),
        "bcl learned tau": ("bcl", False, LEARNED),
        "bcl cosine": ("bcl", True, dict(head="cosine", scale=30.0)),
        "classify": ("classify", False, {}),
        "classify smoothed": ("classify", False, dict(loss="balanced_softmax", label_smoothing=0.1)),
        "classify adjusted": ("classify", False, dict(loss=dict(name="logit_adjustment", tau=1.5))),
        "classify ldam": ("classify", False, dict(loss=LDAM, head="cosine")),
        "classify scaled": ("classify", True, dict(head="scaled")),
        "classify taught": ("classify", True, dict(distill=dict(teachers=["a"], weight=0.7, tau=2.0))),
        "moco": ("moco", False, PLAIN),
        "moco v1 head": ("moco", False, PLAIN | dict(head_layers=1)),
        "moco hard": ("moco", False, moco_loss("hard_contrastive", keep=0.3)),
        "moco simple": ("moco", False, moco_loss("simple", weight=0.1) | dict(tau=None)),
        "moco hard simple": ("moco", False, moco_loss("hard_simple", weight=0.1, keep=0.3) | dict(tau=None)),
        "moco learned tau": ("moco", False, PLAIN | LEARNED),
        "sup_con": ("sup_con", False, PLAIN),
        "sup_con learned tau": ("sup_con", False, PLAIN | LEARNED),
        "paco": ("paco", False, PLAIN),
        "paco sum": ("paco", False, PLAIN | dict(reduction="sum", gamma=0.5, beta=2.0, rebalance=False)),
        "paco smoothed": ("paco", False, PLAIN | dict(label_smoothing=0.2, center_tau=0.7) | LEARNED),
        "gpaco": ("gpaco", False, PLAIN | dict(label_smoothing=0.2)),
        "gpaco learned tau": ("gpaco", False, PLAIN | LEARNED),
        "pico": ("pico", False, PLAIN),
        "simclr": ("simclr", False, PLAIN),
        "simclr learned tau": ("simclr", False, PLAIN | LEARNED),
        "margin class": ("margin", False, PLAIN),
        "margin instance": (
            "margin",
            False,
            PLAIN | dict(pairs="instance", normalize=False, squared_margin=True),
        ),
        "moco_v3": ("moco_v3", True, {}),
        "moco_v3 learned tau": ("moco_v3", False, LEARNED | dict(predictor_batchnorm=True)),
    }
    for per in ("step", "sample", "dimension"):
        found[f"moco ft {per}"] = ("moco", False, transformed(per))
        found[f"moco ft {per} union"] = ("moco", False, transformed(per, True, True))
    for name in ("sup_con", "paco", "gpaco", "pico"):
        found[f"{name} ft"] = (name, False, transformed("dimension"))
    found["paco ft sample union"] = ("paco", False, transformed("sample", True, True))
    for name in ("bcl", "classify", "moco", "paco", "gpaco", "pico", "simclr", "margin"):
        found[f"{name} sync"] = (name, True, {} if name == "classify" else dict(head_batchnorm=True))
    for name in ("moco", "paco", "pico"):
        grouped = dict(head_batchnorm=True, key_groups=2 * size)
        found[f"{name} groups"] = (name, True, grouped)
    found["moco groups ft"] = ("moco", True, transformed("sample") | dict(key_groups=size))
    return found


def batch(seed: int, size: int, views: int, dtype: torch.dtype) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = tuple(torch.randn(size, 3, SIDE, SIDE, generator=generator, dtype=dtype) for _ in range(views))
    index = torch.randperm(100, generator=generator)[:size]
    return Batch(images, LABELS[index], index, CANDIDATES[index])


def build(name: str, batchnorm: bool, changes: dict[str, Any]) -> Objective:
    torch.manual_seed(0)
    info = INFO._replace(teachers=(teacher(batchnorm),)) if "distill" in changes else INFO
    return OBJECTIVES[name](config(name, **changes), Encoder(batchnorm), info)


def teacher(batchnorm: bool) -> Teacher:
    centers = Centers(torch.randn(3, Encoder.num_features), torch.randn(3), torch.ones(3, dtype=torch.int64))
    as_given = Normalization((0.5,) * 3, (0.25,) * 3)
    return Teacher(Encoder(batchnorm), centers, own=as_given, given=as_given, sha256="0" * 64)


def backward_alone(objective: Objective, data: Batch, seed: int) -> Output:
    torch.manual_seed(seed)
    output = objective(data)
    output.loss.backward()
    return output


def backward_joined(objective: Objective, data: Batch, seed: int, ranks: Ranks) -> Output:
    """What the Stepper does on several ranks: own rows, gradients averaged, the rest gathered."""
    torch.manual_seed(derive_seed(seed, ranks.rank))
    ranks.generator.manual_seed(seed)
    total = len(data.index)
    ranks.counts, own = ranks.shares(total), ranks.rows(total)
    views = tuple(view[own] for view in data.views)
    part = Batch(views, data.labels[own], data.index[own], data.candidates[own])
    output = objective(part)
    share = ranks.counts[ranks.rank] / total
    (output.loss * share * ranks.size).backward()
    ranks.average_([*gradients(objective).values()])
    ranks.average_(running_statistics(objective))
    metrics = {name: ranks.all_reduce(value.double() * share) for name, value in output.metrics.items()}
    _, everyones = gathered(part, output, ranks)
    return Output(ranks.all_reduce(output.loss.detach() * share), metrics, everyones.carry)


def descend(objective: Objective) -> None:
    with torch.no_grad():
        for parameter in objective.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None


def differences(joined: dict[str, Tensor], alone: dict[str, Tensor]) -> float:
    """Largest difference between tensors of the same names, relative to 1 + their size."""
    assert joined.keys() == alone.keys()
    pairs = [(joined[key].double(), alone[key].double()) for key in alone]
    return max(
        (((a - b).abs() / (1 + b.abs())).nan_to_num(nan=torch.inf).max().item() for a, b in pairs), default=0
    )


def compared(output: Output) -> dict[str, Tensor]:
    """Metrics whose mean over ranks is that of one rank; percents are means in float32."""
    metrics = output.metrics
    accuracies = {name: v for name, v in metrics.items() if name.endswith("accuracy")}
    percents = {name: v.double().round(decimals=3) for name, v in accuracies.items()}
    return {name: v for name, v in (metrics | percents).items() if not v.isnan()}


def gradients(objective: Objective) -> dict[str, Tensor]:
    return {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}


def same_bits(objective: Objective) -> bool:
    own = torch.cat([value.double().flatten() for value in objective.state_dict().values()])
    first = own.clone()
    dist.broadcast(first, 0)
    return bool(torch.equal(first, own))


def tried(
    name: str,
    batchnorm: bool,
    changes: dict[str, Any],
    ranks: Ranks,
    sizes: list[int],
    dtype: torch.dtype = torch.float64,
    losses_alone: bool = False,
) -> tuple[float, bool]:
    """Train both copies; return the largest difference and whether all ranks have the same state.

    In float32 the encoder and the heads compute in bfloat16.
    """
    alone = build(name, batchnorm, changes).to(dtype).train()
    joined = copy.deepcopy(alone)
    joined.join(ranks)
    synchronize_batchnorm(joined, ranks)
    worst = 0.0
    for step, size in enumerate(sizes):
        data = batch(step, size, alone.num_views, dtype)
        for objective in (alone, joined):
            objective.epoch, objective.progress = step / 2, step / len(sizes)
        seed = derive_seed("step", 0, step)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            one = backward_alone(alone, data, seed)
            several = backward_joined(joined, data, seed, ranks)
        worst = max(worst, differences({"loss": several.loss}, {"loss": one.loss.detach()}))
        if not losses_alone:
            worst = max(worst, differences(compared(several), compared(one)))
            worst = max(worst, differences(gradients(joined), gradients(alone)))
        for objective, output in ((alone, one), (joined, several)):
            descend(objective)
            objective.update(data, output)
        if not losses_alone:
            worst = max(worst, differences(joined.state_dict(), alone.state_dict()))
    largest = torch.tensor(worst)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    (unlike,) = ranks.all_reduce_max(int(not same_bits(joined)))
    return largest.item(), not unlike


def main() -> None:
    with join("cpu") as ranks:
        size = ranks.size
        results = {}
        for case, settings in cases(size).items():
            if size > 2 and case not in FEW:
                continue
            # 20 keys fit into the queue. The last batch has fewer groups of keys where there are any
            grouped = "groups" in case
            sizes = [4 * size, 4 * size + 1, 5 * size, 2 * size + 1] if grouped else [12, 11, 7, 12]
            results[case] = tried(*settings, ranks, sizes)
        # neither equal to one rank nor meant to be: the ranks do not divide the groups, bf16 rounds
        odd = dict(head_batchnorm=True, key_groups=2 * size + 1)
        results["moco groups not divided"] = tried("moco", True, odd, ranks, sizes, losses_alone=True)
        mixed = dict(head_batchnorm=True, key_groups=size)
        results["paco groups bf16"] = tried("paco", True, mixed, ranks, sizes, torch.float32, True)
        if size > 2:
            sync_batchnorm.check(ranks)
        if ranks.rank == 0:
            for case, (difference, same) in results.items():
                print(f"{case}: {difference:.1e} {'same' if same else 'unlike'}")


if __name__ == "__main__":
    main()
