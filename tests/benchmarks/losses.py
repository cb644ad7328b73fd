"""Losses against a queue of 65,536 keys, forward and backward, against forms that hold every score.

InfoNCE's peer materialises the logits and calls cross-entropy, as the authors' code does; PaCo's is
`authors.paco`, with its masks of N x (C + 2N + K). Both sides get the same tensors; losses and
gradients are compared before anything is timed. The targets are those aimed at before anything was measured;
on a GPU InfoNCE's are beyond what float32 allows: both sides do the same two products.

On a CPU use no more threads than there are idle cores: ours are many small operations, each of which waits
for its slowest thread.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.benchmarks import authors
from tests.benchmarks.harness import Row, gate, peak_memory, timed
from zoo import functional

KEYS, DIM, TAU = 65_536, 128, 0.2
Step = Callable[[], tuple[Tensor, Tensor]]


def rows(device: torch.device) -> Iterator[Row]:
    """Measure InfoNCE's time and memory, and PaCo's time."""
    cuda = device.type == "cuda"
    yield _info_nce(device, 256, 6 if cuda else 4)
    if cuda:
        yield _info_nce(device, 4096, 10)
    yield _info_nce_memory(device)
    yield _paco(device, 5 if cuda else 8)


def unit(count: int, device: torch.device | str) -> Tensor:
    """Random unit rows `[count, D]`."""
    return F.normalize(torch.randn(count, DIM, device=device), dim=1)


def materialised(q: Tensor, k: Tensor, queue: Tensor) -> Tensor:
    """InfoNCE as the authors compute it."""
    logits = torch.cat([(q * k).sum(dim=1, keepdim=True), q @ queue.T], dim=1) / TAU
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def streamed(q: Tensor, k: Tensor, queue: Tensor) -> Tensor:
    """InfoNCE of the library, told as in training which slots are filled."""
    valid = torch.ones(len(queue), dtype=torch.bool, device=queue.device)
    return functional.info_nce(q, k, queue, tau=TAU, valid=valid)


def step(loss: Callable[[Tensor], Tensor], q: Tensor) -> Step:
    """One forward and backward pass: the loss and its gradient."""

    def run() -> tuple[Tensor, Tensor]:
        anchors = q.detach().requires_grad_()
        value = loss(anchors)
        return value.detach(), torch.autograd.grad(value, anchors)[0]

    return run


def equal(ours: Step, theirs: Step) -> str:
    """Gate: loss relative, gradient relative to its largest entry.

    Two float32 forms: each is within 3e-7 of the exact gradient, tests/test_streaming.py.
    """
    (a, da), (b, db) = ours(), theirs()
    gate("loss", float((a - b).abs() / b.abs()), 1e-6)
    return gate("loss and gradient", float((da - db).abs().max() / db.abs().max()), 1e-6)


def _info_nce(device: torch.device, anchors: int, target: float) -> Row:
    torch.manual_seed(0)
    q, k, queue = (unit(n, device) for n in (anchors, anchors, KEYS))
    forms = [step(lambda q, f=f: f(q, k, queue), q) for f in (streamed, materialised)]
    name = f"InfoNCE forward + backward, N {anchors}, K {KEYS}, D {DIM}"
    return timed(name, "materialised logits + cross_entropy", forms, target, equal(*forms), device, 7)


def _info_nce_memory(device: torch.device) -> Row:
    prepare = f"""
from tests.benchmarks.losses import *
device = torch.device({device.type!r})
small = unit(8, device)
for form in (streamed, materialised):  # libraries are loaded, and their workspaces made
    step(lambda q: form(q, small, small), small)()
q, k, queue = (unit(n, device) for n in (4096, 4096, KEYS))
# loading had its own peak: fill up to it, so that whatever is added shows
status = open("/proc/self/status").read()
peak, resident = (int(status.split(name)[1].split()[0]) * 1024 for name in ("VmHWM:", "VmRSS:"))
ballast = torch.ones((peak - resident) // 4 + 1)
# measure
step(lambda q: %s(q, k, queue), q)()
"""
    ours, theirs = (peak_memory(prepare % form, device.type) for form in ("streamed", "materialised"))
    name, shown = f"InfoNCE peak memory, N 4096, K {KEYS}", (f"{x / 2**20:.4g} MiB" for x in (ours, theirs))
    return Row(name, "materialised logits", ours / theirs, 0.03, *shown, "as above", at_most=True)


def _paco(device: torch.device, target: float) -> Row:
    torch.manual_seed(0)
    anchors, classes = 1024, 1000
    q, k, queue = (unit(n, device) for n in (anchors, anchors, KEYS))
    labels, queue_labels = (torch.randint(classes, (n,), device=device) for n in (anchors, KEYS))
    logits, prior = torch.randn(anchors, classes, device=device), torch.randn(classes, device=device)
    given = k, labels, queue, queue_labels, logits, prior.log_softmax(0)
    settings = {"alpha": 0.05, "tau": TAU}
    forms = [step(lambda q, f=f: f(q, *given, **settings), q) for f in (functional.paco, authors.paco)]
    name = f"PaCo forward + backward, N {anchors}, K {KEYS}, C {classes}, D {DIM}"
    return timed(name, "masked N x (C + 2N + K)", forms, target, equal(*forms), device, 3)
