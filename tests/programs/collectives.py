"""Started by torchrun in tests/test_ranks.py: what every collective gives, with equal and unequal shares."""

from __future__ import annotations

import os

import torch

from zoo.training.distributed import join

with join("cpu") as ranks:
    rank, size = ranks.rank, ranks.size
    assert size == int(os.environ["WORLD_SIZE"])
    for total in (4 * size, 4 * size + 1, 5 * size - 1):
        shares = ranks.shares(total)
        whole = torch.randn(total, 3, generator=torch.Generator().manual_seed(total), dtype=torch.float64)
        assert [len(part) for part in whole.tensor_split(size)] == list(shares)
        ranks.counts = shares
        own = whole[ranks.rows(total)].clone().requires_grad_()
        gathered = ranks.gather(own)
        assert torch.equal(gathered, whole)
        weights = torch.arange(3 * total, dtype=torch.float64).view(total, 3)
        (gathered * weights * (rank + 1)).sum().backward()  # rank r's gradient for any row: r + 1 weights
        assert torch.equal(own.grad, weights[ranks.rows(total)] * sum(range(1, size + 1)))

        mask = torch.ones(total, dtype=torch.bool)
        mask[ranks.rows(total)] = False
        assert torch.equal(ranks.others(own).detach(), whole[mask])

        labels, flags = torch.arange(total), torch.arange(total) % 3 == 0
        some = [labels[ranks.rows(total)], flags[ranks.rows(total)], own, own.float()[:, :1, None]]
        found = ranks.gather_rows(some)
        expected = [labels, flags, whole, whole.float()[:, :1, None]]
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b)

        order = torch.randperm(total, generator=torch.Generator().manual_seed(1))
        wanted = list(order.tensor_split(size))  # rank r asks for rows order[r]
        owner = torch.bucketize(torch.arange(total), torch.tensor(shares).cumsum(0), right=True)
        start = ranks.rows(total).start
        sent = [(part[owner[part] == rank] - start) for part in wanted]
        mine = wanted[rank]
        received = [int((owner[mine] == r).sum()) for r in range(size)]
        arrived = ranks.exchange(own.detach(), sent, received)
        expected = torch.cat([whole[mine[owner[mine] == r]] for r in range(size)])
        assert torch.equal(arrived, expected)

    means = [torch.full((2,), float(rank)), torch.full((3, 1), 10.0 * rank)]
    ranks.average_(means)
    assert means[0].tolist() == [(size - 1) / 2] * 2 and means[1].flatten().tolist() == [5.0 * (size - 1)] * 3
    assert ranks.all_reduce_max(rank, -rank) == (size - 1, 0)
    assert ranks.all_reduce(torch.ones(2)).tolist() == [size, size]
    assert ranks.all_gather_object("ä" * rank) == ["ä" * each for each in range(size)]
    assert ranks.all_gather_object("") == [""] * size
    ranks.barrier()
    print(f"rank {rank} of {size}: ok")
