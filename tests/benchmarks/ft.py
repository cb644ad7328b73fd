"""FT's negative interpolation, and what FT adds to a MoCo step.

The peer draws its Beta coefficients with NumPy on the CPU and mixes in torch, from the description of the
authors' code (which draws two such masks a step and throws them away; the peer here draws one and uses it).
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from tests.benchmarks.harness import Row, gate, medians, milliseconds
from tests.objective_helpers import transformed
from zoo import backbones, functional
from zoo.objectives import OBJECTIVES, Batch, DataInfo, Objective
from zoo.objectives.momentum_contrast import FeatureTransformConfig

KEYS, DIM, ALPHA = 65_536, 128, 1.6


def rows(device: torch.device) -> Iterator[Row]:
    """Measure the transformation alone, then a MoCo step with it and without."""
    yield _transform(device)
    yield _step(device)


def _config(per: str, *, keep: bool = False) -> FeatureTransformConfig:
    return FeatureTransformConfig.model_validate(
        {
            "positives": {"alpha": 2.0, "per": per},
            "negatives": {"alpha": ALPHA, "per": per, "keep_originals": keep},
            "renormalize": False,
            "start_epoch": 0,
        }
    )


def _transform(device: torch.device) -> Row:
    torch.manual_seed(0)
    queue = F.normalize(torch.randn(KEYS, DIM, device=device), dim=1)
    valid = torch.ones(KEYS, dtype=torch.bool, device=device)
    pair = queue[:256]

    def ours(per: str = "dimension", keep: bool = False) -> Tensor:
        return transformed(pair, pair, queue, valid, _config(per, keep=keep))[2]

    def theirs() -> Tensor:
        drawn = np.random.default_rng().beta(ALPHA, ALPHA, size=(KEYS, DIM))
        lam = torch.from_numpy(drawn).float().to(device)
        return lam * queue + (1 - lam) * queue[torch.randperm(KEYS, device=device)]

    samples = functional.sample_beta(ALPHA, (200_000,), device=device).cpu().double().numpy()
    distance = stats.kstest(samples, stats.beta(ALPHA, ALPHA).cdf).statistic
    green = gate("coefficients against Beta's distribution function", float(distance), 1.95 / 200_000**0.5)
    # the mixes have the same moments: E |z^|^2 = 1 - 2 Var l - 2 (1/4 - Var l) (1 - E z.z'), here E z.z' = 0
    a, b = (float(x.square().sum(dim=1).mean()) for x in (ours(), theirs()))
    gate("mean square norm of the mixes", abs(a - b) / b, 5e-3)
    fast, slow = medians([ours, theirs], device=device, rounds=5)
    kinds = [(per, keep) for per in ("step", "sample", "dimension") for keep in (False, True)]
    each = medians([lambda k=kind: ours(*k) for kind in kinds], device=device, rounds=3)
    note = ", ".join(
        f"per {per}{' with originals' if keep else ''} {milliseconds(seconds)}"
        for (per, keep), seconds in zip(kinds, each, strict=True)
    )
    return Row(
        f"FT, per dimension, K x D = {KEYS} x {DIM}",
        "NumPy Beta + mix",
        slow / fast,
        6,
        milliseconds(fast),
        milliseconds(slow),
        green,
        note=note,
    )


def _moco(device: torch.device, ft: FeatureTransformConfig | None) -> Objective:
    torch.manual_seed(0)
    section = dict(
        name="moco",
        dim=DIM,
        head_layers=2,
        head_hidden=2048,
        head_batchnorm=False,
        queue_size=KEYS,
        tau=0.2,
        momentum=0.999,
        key_groups=1,
        loss={"name": "info_nce"},
        feature_transform=ft and ft.model_dump(),
    )
    moco = OBJECTIVES["moco"]
    objective = moco(
        moco.Config.model_validate(section), backbones.create("resnet50"), DataInfo(torch.ones(10))
    )
    return objective.to(device)


def _step(device: torch.device) -> Row:
    cuda = device.type == "cuda"
    size, side = (256, 224) if cuda else (8, 96)
    views = tuple(torch.randn(size, 3, side, side, device=device) for _ in range(2))
    batch = Batch(views, torch.zeros(size, dtype=torch.long, device=device), torch.arange(size), None)
    objectives = [_moco(device, ft) for ft in (_config("dimension"), None)]

    def step(objective: Objective) -> Tensor:
        objective.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            output = objective(batch)
        output.loss.backward()
        objective.update(batch, output)
        return output.loss.detach()

    for objective in objectives:  # fill the queue: an empty one has nothing to mix
        queue = objective.queue
        queue.enqueue(F.normalize(torch.randn(KEYS, DIM, device=device), dim=1), queue.labels.clone())
    losses = [float(step(objective)) for objective in objectives]
    green = gate("losses are finite and FT's is larger", float(not losses[1] < losses[0] < 1e3), 0)
    with_ft, without = medians([lambda o=o: step(o) for o in objectives], device=device, rounds=5)
    return Row(
        f"MoCo ResNet-50 step with FT, batch {size} at {side} px",
        "the step without",
        with_ft / without,
        # the target is the GPU's; on a CPU the batch is too small for a share that means something
        1.02 if cuda else 2.0,
        milliseconds(with_ft),
        milliseconds(without),
        green,
        at_most=True,
    )
