"""The key encoder's update against a loop over parameters.

The peer is the authors' loop, restated: `p.data = p.data * m + s.data * (1 - m)` over both networks'
parameters. The note has the ratio to the same loop in place, `p.mul_(m).add_(s, alpha=1 - m)`.
"""

from collections.abc import Iterator

import torch

from tests.benchmarks.harness import Row, gate, medians, milliseconds
from zoo import backbones
from zoo.modules import MomentumEncoder

M = 0.999
TARGETS = {"cpu": {"cifar_resnet32": 12, "resnet50": 3}, "cuda": {"cifar_resnet32": 20, "resnet50": 2}}


def rows(device: torch.device) -> Iterator[Row]:
    """Measure a small and a large network."""
    yield from (_measure(device, arch, target) for arch, target in TARGETS[device.type].items())


def _measure(device: torch.device, arch: str, target: float) -> Row:
    torch.manual_seed(0)
    student = backbones.create(arch).to(device)
    teachers = [MomentumEncoder(student).to(device) for _ in range(3)]
    with torch.no_grad():
        for p in student.parameters():
            p.add_(torch.randn_like(p))
    ours, authors, in_place = teachers

    def loop() -> None:
        for p, s in zip(authors.module.parameters(), student.parameters(), strict=True):
            p.data = p.data * M + s.data * (1 - M)

    @torch.no_grad()
    def loop_in_place() -> None:
        for p, s in zip(in_place.module.parameters(), student.parameters(), strict=True):
            p.mul_(M).add_(s, alpha=1 - M)

    functions = [lambda: ours.update([student], M), loop, loop_in_place]
    for function in functions:
        function()
    pairs = zip(ours.parameters(), authors.parameters(), strict=True)
    difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    green = gate("parameters", difference, 1e-6)
    fast, slow, also = medians(functions, device=device, rounds=25, warmup=3)
    return Row(
        f"EMA update, {arch}",
        "per-parameter loop",
        slow / fast,
        target,
        milliseconds(fast),
        milliseconds(slow),
        green,
        note=f"against the loop in place {also / fast:.3g}x",
    )
