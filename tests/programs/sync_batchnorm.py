"""SyncBatchNorm against BatchNorm on the whole batch; a part of tests/programs/objectives.py."""

from __future__ import annotations

import copy

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.errors import TrainingError
from zoo.modules import MomentumEncoder, convert_ghost_batchnorm, running_statistics, synchronize_batchnorm
from zoo.ranks import Ranks

LAYERS = {
    "1d": (nn.BatchNorm1d(5), (5,)),
    "1d of sequences": (nn.BatchNorm1d(5), (5, 7)),
    "1d without affine": (nn.BatchNorm1d(5, affine=False), (5,)),
    "2d": (nn.BatchNorm2d(5, momentum=0.3, eps=1e-2), (5, 3, 4)),
    "2d without running statistics": (nn.BatchNorm2d(5, track_running_stats=False), (5, 3, 4)),
    "2d of momentum 0": (nn.BatchNorm2d(5, momentum=0.0), (5, 3, 4)),
    "timm's": (BatchNormAct2d(5, act_layer=nn.SiLU), (5, 3, 4)),
}


def close(a: Tensor | None, b: Tensor | None, tolerance: float = 1e-12) -> None:
    assert (a is None) == (b is None)
    if a is not None and b is not None:
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)


def compare(
    ranks: Ranks,
    layer: nn.Module,
    x: Tensor,
    tolerance: float = 1e-12,
    *,
    like: torch.dtype = torch.float64,
    autocast: bool = False,
) -> None:
    """Two training passes and one in evaluation mode, on own rows of `x` and, in float64, on all."""
    torch.manual_seed(0)
    whole = copy.deepcopy(layer).double()
    for value in whole.parameters():
        nn.init.uniform_(value, 0.5, 2)
    joined = copy.deepcopy(whole).to(like)
    synchronize_batchnorm(joined, ranks)
    assert list(joined.state_dict()) == list(whole.state_dict())
    own = ranks.rows(len(x))
    for _ in range(2):
        a = x.double().clone().requires_grad_()
        b = x[own].clone().requires_grad_()
        expected = whole(a)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = joined(b)
        assert found.dtype == b.dtype
        assert found.is_contiguous(memory_format=torch.channels_last) or found.is_contiguous()
        close(found, expected[own], tolerance)
        toward = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        (expected * toward).sum().backward()
        (found.double() * toward[own]).sum().backward()
        close(b.grad, a.grad[own], tolerance)
        for p, q in zip(joined.parameters(), whole.parameters(), strict=True):
            close(ranks.all_reduce(p.grad), q.grad, tolerance * len(x))
            p.grad = q.grad = None
        for p, q in zip(joined.buffers(), whole.buffers(), strict=True):
            close(p, q, tolerance)
    if len(list(whole.buffers())):  # without running statistics each rank evaluates with its rows' own
        close(joined.eval()(x[own]), whole.eval()(x.double())[own], tolerance)


def equals_the_whole_batch(ranks: Ranks) -> None:
    size = ranks.size
    for total in (4 * size, 2 * size + 1, size + 1):  # also a rank with a single row
        ranks.counts = ranks.shares(total)
        for layer, shape in LAYERS.values():
            x = torch.randn(total, *shape, generator=torch.Generator().manual_seed(total)).double() * 3 + 7
            compare(ranks, layer, x)
            if len(shape) == 3:
                compare(ranks, layer, x.contiguous(memory_format=torch.channels_last))
        # a mean of 1000 standard deviations leaves float32 4 digits; a difference of squares would have none
        far = torch.randn(total, 5, 8, 8, generator=torch.Generator().manual_seed(total)) + 1000
        compare(ranks, nn.BatchNorm2d(5), far, 2e-3, like=torch.float32)
        half = torch.randn(total, 5, 8, 8, generator=torch.Generator().manual_seed(total)).bfloat16()
        compare(ranks, nn.BatchNorm2d(5), half, 3e-2, like=torch.float32, autocast=True)


def needs_no_gradient_of_the_input(ranks: Ranks) -> None:
    # the first layer's input needs no gradient: then backward sends nothing, on no rank
    ranks.counts = ranks.shares(4 * ranks.size)
    layer = synchronize_batchnorm(nn.BatchNorm1d(5), ranks)
    layer(torch.randn(4, 5)).sum().backward()
    assert layer.weight.grad is not None


def is_computed_again(ranks: Ranks) -> None:
    # checkpointed activations: the backward pass sends the forward's statistics a second time
    ranks.counts = ranks.shares(4 * ranks.size)
    net = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.SiLU(), nn.Conv2d(5, 4, 1), nn.BatchNorm2d(4)
    )
    synchronize_batchnorm(net.double(), ranks)
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    found = []
    for forward in (net, lambda x: checkpoint(net, x, use_reentrant=False)):
        forward(x).square().sum().backward()
        found.append([p.grad for p in net.parameters()])
        net.zero_grad()
    for a, b in zip(*found, strict=True):
        close(a, b)


def leaves_and_refuses(ranks: Ranks) -> None:
    # again is as once; what has groups of its own stays; what nobody knows is refused
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3)))
    convert_ghost_batchnorm(net[1], 2)
    for _ in range(2):
        synchronize_batchnorm(net, ranks)
    assert [type(m).__name__ for m in net.modules() if isinstance(m, nn.BatchNorm2d)] == [
        "SyncBatchNorm2d",
        "GhostBatchNorm2d",
    ]
    assert [id(s) for s in running_statistics(net)] == [id(net[1][0].running_mean), id(net[1][0].running_var)]
    assert running_statistics(net.eval()) == []
    for unknown in (nn.SyncBatchNorm(3), nn.BatchNorm3d(3), nn.BatchNorm1d(3, momentum=None)):
        try:
            synchronize_batchnorm(nn.Sequential(unknown), ranks)
        except TrainingError as error:
            assert f'layer "0" is a {type(unknown).__name__}' in str(error) and "sync_batchnorm" in str(error)
        else:
            raise AssertionError(unknown)
    copied = copy.deepcopy(net)  # releases and evaluation copy the encoder
    close(copied(torch.ones(2, 3, 4, 4)), net(torch.ones(2, 3, 4, 4)))


def returns_keys_to_their_rows(ranks: Ranks) -> None:
    # shuffled keys come back to their rows, in the layout they were sent in, and no rank has others' groups
    size = ranks.size
    teacher = MomentumEncoder(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()), key_groups=size)
    teacher.ranks = ranks
    for total in (4 * size, 5 * size - 1):
        ranks.counts, own = ranks.shares(total), ranks.rows(total)
        images = torch.randn(total, 3, 4, 4, generator=torch.Generator().manual_seed(1))
        alone = MomentumEncoder(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()), key_groups=size)
        torch.manual_seed(5)
        expected = alone(images)[own]
        for layout in (torch.contiguous_format, torch.channels_last):
            seen: list[Tensor] = []
            handle = teacher.module.register_forward_pre_hook(
                lambda _, given, seen=seen: seen.append(given[0])
            )
            ranks.generator.manual_seed(5)
            found = teacher(images[own].contiguous(memory_format=layout))
            handle.remove()
            close(found, expected, 1e-5)
            assert seen[0].is_contiguous(memory_format=layout)


def check(ranks: Ranks) -> None:
    """Check everything above, on several ranks."""
    equals_the_whole_batch(ranks)
    needs_no_gradient_of_the_input(ranks)
    is_computed_again(ranks)
    leaves_and_refuses(ranks)
    returns_keys_to_their_rows(ranks)
