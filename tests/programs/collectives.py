"""Started by torchrun in tests/test_ranks.py: what every collective gives, and that ranks meet again."""

import os
import time

import torch
from torch import nn

from zoo.modules import MomentumEncoder
from zoo.objectives import Output
from zoo.training.distributed import join
from zoo.training.logging import Metrics

with join("cpu") as ranks:
    rank, size, each = ranks.rank, ranks.size, 4
    assert size == int(os.environ["WORLD_SIZE"])
    whole = torch.randn(each * size, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    here = slice(each * rank, each * (rank + 1))
    own = whole[here].clone().requires_grad_()
    gathered = ranks.gather(own)
    assert torch.equal(gathered, whole)
    weights = torch.arange(3.0 * each * size, dtype=torch.float64).view(-1, 3)
    (gathered * weights * (rank + 1)).sum().backward()  # rank r's gradient for any row: r + 1 weights
    assert torch.equal(own.grad, weights[here] * sum(range(1, size + 1)))

    mask = torch.ones(len(whole), dtype=torch.bool)
    mask[here] = False
    assert torch.equal(ranks.gather_others(own).detach(), whole[mask])

    images = torch.randn(each * size, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.Flatten())
    net[0].weight.data = torch.ones(2, 3, 1, 1)
    for groups in (size, 2 * size):  # keys are those of one rank, in groups of the whole batch
        alone, shared = (MomentumEncoder(net, key_groups=groups) for _ in range(2))
        shared.ranks = ranks
        torch.manual_seed(3)
        ranks.generator.manual_seed(3)
        torch.testing.assert_close(shared(images[here]), alone(images)[here])

    means = [torch.full((2,), float(rank)), torch.full((3, 1), 10.0 * rank)]
    ranks.average_(means)
    assert means[0].tolist() == [(size - 1) / 2] * 2 and means[1].flatten().tolist() == [5.0 * (size - 1)] * 3
    assert ranks.all_reduce_max(rank, -rank) == (size - 1, 0)
    assert ranks.all_reduce(torch.ones(2)).tolist() == [size, size]
    metrics = Metrics(ranks)  # of what is not on every rank the mean is over those that have it
    own_metrics = {"both": torch.tensor(float(rank)), f"of {rank}": torch.tensor(10.0)}
    metrics.add(Output(torch.tensor(1.0), own_metrics), images=each)
    metrics.close({"step": 1})
    (row,) = metrics.rows(wait=True)
    assert (row["both"], row["of 0"], row["of 1"]) == ((size - 1) / 2, 10.0, 10.0)
    # what one does while the others wait may take longer than ZOO_RANK_TIMEOUT
    assert ranks.broadcast_from_first(lambda: time.sleep(8) or {"a": rank}) == {"a": 0}
    ranks.barrier()
if rank == 0:
    time.sleep(1)  # the others come to the next meeting before it
with join("cpu") as ranks:
    assert ranks.all_reduce_max(rank) == (size - 1,)
print(f"rank {rank} of {size}: ok")
