"""One epoch of PaCo on long-tailed CIFAR-100, data included: the recipe against the authors' script.

ResNet-32, batch 128, 84 steps. Steps of all are timed in turn on the same number of photo-like 32x32 images;
an epoch is that many steps. The script counts as it is, and with the two lines that give it our precision and
memory layout; the floor is both encoders alone. Before that both do one update from the same weights on the
same views: equal loss, and an equal update, in float32.
"""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from tests.benchmarks import authors
from tests.benchmarks.harness import Row, gate, medians
from tests.data_fixtures import photo
from zoo.data import Batch, ImageDataset
from zoo.data.dataset import ImageStore
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training.build import open_loader
from zoo.training.precision import autocast, choose, compiled, float32_products, place, resolve_auto
from zoo.training.step import Stepper

RECIPE = "cifar_resnet32.paco_cifar100_lt100"
IMAGES, STEPS_AN_EPOCH = 1280, 84
TAIL = 10_847  # images of an epoch, by which `auto` chooses
CLASSES = 100


class Photos(ImageStore):
    """Images in memory, as CIFAR's are."""

    def __init__(self, count: int) -> None:
        self.arrays = np.stack([np.asarray(photo(32, 32, seed)) for seed in range(count)])
        super().__init__(self.arrays, [*map(str, range(count))])


def rows(device: torch.device) -> Iterator[Row]:
    """Compare with the authors' pipeline of 0 workers (and, on a GPU, of 16)."""
    photos = Photos(IMAGES)
    counts = np.array([max(1, round(500 * 0.01 ** (c / 99))) for c in range(CLASSES)])
    labels = np.random.default_rng(0).choice(CLASSES, IMAGES, p=counts / counts.sum())
    labels[:CLASSES] = np.arange(CLASSES)  # every class has an image
    dataset = ImageDataset(photos, labels, [str(c) for c in range(CLASSES)], settings={"name": "photos"})
    if device.type == "cpu":
        yield from _rows(dataset, photos, device, [], 0, (1.8, 1.0))
        yield from _rows(dataset, photos, device, ["training.precision=fp32"], 0, (1.5, 1.0))
    else:
        for workers, target in ((0, 40), (16, 8)):
            compiled = ["training.compile=reduce-overhead"]
            yield from _rows(dataset, photos, device, compiled, workers, (target, 1.0))


def _rows(
    dataset: ImageDataset,
    photos: Photos,
    device: torch.device,
    changes: list[str],
    workers: int,
    targets: tuple[float, float],
) -> Iterator[Row]:
    """Yield the row against their script as it is, and that against it in our precision and memory layout."""
    recipe = Recipe.load(RECIPE, [f"training.device={device.type}", *changes])
    loader = open_loader(dataset, recipe, device)
    equal = _gate(dataset, device, next(iter(loader.stream(0, 1))))
    objective: Any = build_objective(recipe, dataset)
    recipe = resolve_auto(recipe, choose(recipe, objective.encoder, TAIL, device))
    place(objective, recipe, device)
    as_it_is, best = (_peer(objective, recipe, device) for _ in range(2))
    best[0].to(memory_format=torch.channels_last)
    stepper, precision = Stepper(objective, recipe, STEPS_AN_EPOCH, device), recipe.training.precision

    ours = iter(enumerate(_for_ever(loader), recipe.training.epochs // 2 * STEPS_AN_EPOCH))
    two_views = authors.TwoViews(photos.arrays, dataset.labels, recipe.data.mean, recipe.data.std)
    theirs = authors.batches(two_views, recipe.training.batch_size, workers)

    def their_step(
        peer: authors.PaCo | authors.Files, optimizer: torch.optim.Optimizer, better: bool
    ) -> None:
        layout = torch.channels_last if better else torch.contiguous_format
        *views, labels = (x.to(device, non_blocking=True) for x in next(theirs))
        first, second = (view.contiguous(memory_format=layout) for view in views)
        with float32_products(), autocast(precision if better else "fp32", device):
            loss = peer.loss((first, second), labels)
        _update(loss, optimizer)

    first, second = next(iter(loader.stream(0, 1))).views

    def encoders() -> None:
        with autocast(precision, device):
            objective.teacher.module[0](second)
            features = objective.encoder(first)
        features.float().sum().backward()

    steps = [
        lambda: stepper(*next(ours)),
        *(partial(their_step, *peer, n) for n, peer in enumerate((as_it_is, best))),
    ]
    repeated = (40, 8) if device.type == "cuda" else (9, 2)
    with (
        compiled(objective, recipe.training.compile),
        float32_products(precision, fastest=True),
    ):
        mine, *others, floor = medians([*steps, encoders], device, *repeated)
    for target, seconds, form in zip(
        targets, others, ("as it is", f"{precision}, channels_last"), strict=True
    ):
        shown = [f"{STEPS_AN_EPOCH * each:.3g} s" for each in (mine, seconds)]
        files = "re-stated" if authors.folder is None else "their files"
        peer = f"authors' script, {files}, {workers} workers, {form}"
        name = f"PaCo-R32 CIFAR epoch, data included, {precision}, compile {recipe.training.compile}"
        note = f"{recipe.training.batch_size / mine:.0f} images/s; steps timed, x {STEPS_AN_EPOCH}"
        yield Row(name, peer, seconds / mine, target, *shown, equal, note=note, floor=floor / mine)


def _for_ever(loader: Any) -> Iterator[Batch]:
    while True:
        yield from loader.stream(0, 100 * loader.steps_per_epoch)


def _peer(
    objective: Objective, recipe: Recipe, device: torch.device
) -> tuple[authors.PaCo | authors.Files, torch.optim.Optimizer]:
    """Give the authors' form the same weights, in its own layout and with its own optimizer."""
    own = copy.deepcopy(objective).to(memory_format=torch.contiguous_format)
    peer = authors.PaCo(own) if authors.folder is None else authors.Files(own)
    return peer.to(device), sgd(peer, recipe)


def sgd(peer: torch.nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return torch's SGD with the recipe's settings."""
    own = recipe.optimizer
    trained = [p for p in peer.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, own.lr, momentum=own.momentum, weight_decay=own.weight_decay)


def _update(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()  # their meters read it at every step


def _gate(dataset: ImageDataset, device: torch.device, batch: Batch) -> str:
    """Do one update of both in the authors' memory layout: in another, other sums flip ReLUs near 0."""
    recipe = Recipe.load(RECIPE, [f"training.device={device.type}", "training.channels_last=false"])
    objective: Any = build_objective(recipe, dataset)
    place(objective, recipe, device)
    keys = torch.nn.functional.normalize(torch.randn_like(objective.queue.keys), dim=1)
    objective.queue.enqueue(keys, torch.arange(len(keys), device=device) % CLASSES)
    peer, optimizer = _peer(objective, recipe, device)
    before = [p.detach().clone() for p in objective.encoder.parameters()]
    stepper = Stepper(objective, recipe, STEPS_AN_EPOCH, device)
    with float32_products():
        ours = float(stepper(0, batch).loss)
        for group in optimizer.param_groups:
            group["lr"] = stepper.lr
        first, second = batch.views
        theirs = _update(peer.loss((first, second), batch.labels), optimizer)
    pairs = zip(before, objective.encoder.parameters(), peer.encoder.parameters(), strict=False)
    found = [((o - start).abs().max().item(), (o - p).abs().max().item()) for start, p, o in pairs]
    moved, difference = (max(each) for each in zip(*found, strict=True))
    loss = gate("loss of the first update", abs(ours - theirs) / abs(theirs), 1e-5)
    return f"{loss}, {gate('update of the encoder', difference / moved, 1e-3)}"
