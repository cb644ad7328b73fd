"""Losses, forward and backward, at large sizes and at the recipes' own, against forms that hold every score.

InfoNCE's peers are the authors' form, logits put together for cross-entropy, and the plainest quick one: a
product, logsumexp and the gradient's product; its floor is those two products alone. PaCo's is the authors'
loss, their file where it is given; NT-Xent's is lightly's. All get the same tensors; losses and gradients are
compared before anything is timed, and a large tensor is freed, as in any process that trains: from then on
the C library keeps freed memory, for all forms alike.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.benchmarks import authors
from tests.benchmarks.harness import Row, gate, optional, peak_memory, timed
from zoo import functional

KEYS, DIM, TAU = 65_536, 128, 0.2
Step = Callable[[], tuple[Tensor, Tensor]]


def rows(device: torch.device) -> Iterator[Row]:
    """Measure InfoNCE's time and memory, PaCo's and NT-Xent's time."""
    torch.empty(30 * 2**20, dtype=torch.uint8)  # the large tensor: freed at once
    for anchors, keys in ((256, KEYS), (128, 4096), *([(4096, KEYS)] if device.type == "cuda" else [])):
        yield _info_nce(device, anchors, keys, 1.0)
    yield _info_nce_memory(device)
    yield _paco(device, 1024, KEYS, 1000, 5.0)
    yield _paco(device, 128, 1024, 100, 1.0)
    for images in (64, 256, 1024) if (losses := optional("lightly.loss")) else ():
        yield _nt_xent(device, images, losses.NTXentLoss(temperature=TAU))


def unit(count: int, device: torch.device | str) -> Tensor:
    """Random unit rows `[count, D]`."""
    return F.normalize(torch.randn(count, DIM, device=device), dim=1)


def materialised(q: Tensor, k: Tensor, queue: Tensor) -> Tensor:
    """InfoNCE as the authors compute it."""
    logits = torch.cat([(q * k).sum(dim=1, keepdim=True), q @ queue.T], dim=1) / TAU
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def plain(q: Tensor, k: Tensor, queue: Tensor) -> Tensor:
    """InfoNCE as two products, without a copy of the logits."""
    positive = (q * k).sum(dim=1) / TAU
    return (torch.logaddexp(positive, (q / TAU @ queue.T).logsumexp(dim=1)) - positive).mean()


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


def _info_nce(device: torch.device, anchors: int, keys: int, target: float) -> Row:
    torch.manual_seed(0)
    q, k, queue = (unit(n, device) for n in (anchors, anchors, keys))
    forms = [step(lambda q, f=f: f(q, k, queue), q) for f in (streamed, plain, materialised)]
    gates = [equal(forms[0], form) for form in forms[1:]]
    scores, gradient = torch.empty(anchors, keys, device=device), torch.empty_like(q)

    def products() -> None:
        torch.mm(q, queue.T, out=scores)
        torch.mm(scores, queue, out=gradient)

    name, rounds = f"InfoNCE forward + backward, N {anchors}, K {keys:,}, D {DIM}", 5 if anchors > 256 else 15
    peers = ["two products", "materialised logits + cross_entropy"]
    return timed(name, peers, forms, target, gates[0], device, rounds, floor=products)


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


def _paco(device: torch.device, anchors: int, keys: int, classes: int, target: float) -> Row:
    torch.manual_seed(0)
    q, k, queue = (unit(n, device) for n in (anchors, anchors, keys))
    labels, queue_labels = (torch.randint(classes, (n,), device=device) for n in (anchors, keys))
    logits, prior = torch.randn(anchors, classes, device=device), torch.randn(classes, device=device)
    given = k, labels, queue, queue_labels, logits, prior.log_softmax(0)
    settings = {"alpha": 0.05, "tau": TAU}
    their = authors.paco if authors.folder is None else authors.paco_file
    forms = [step(lambda q, f=f: f(q, *given, **settings), q) for f in (functional.paco, their)]
    name = f"PaCo forward + backward, N {anchors}, K {keys:,}, C {classes}, D {DIM}"
    peer = "the authors' loss, " + ("re-stated" if authors.folder is None else "their file")
    return timed(name, peer, forms, target, equal(*forms), device, 3 if keys == KEYS else 25)


def _nt_xent(device: torch.device, images: int, theirs: Callable[[Tensor, Tensor], Tensor]) -> Row:
    torch.manual_seed(0)
    q, k = (torch.randn(images, DIM, device=device) for _ in range(2))

    def own(q: Tensor, k: Tensor) -> Tensor:  # theirs normalises, too
        rows = (F.normalize(each, dim=1) for each in (q, k))
        return functional.in_batch_info_nce(*rows, tau=TAU, both_views=True)

    forms = [step(lambda q, f=f: f(q, k), q) for f in (own, theirs)]
    name = f"NT-Xent forward + backward, {images} images, D {DIM}"
    return timed(name, "lightly", forms, 1.0, equal(*forms), device, 15, 3)
