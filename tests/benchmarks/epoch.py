"""One epoch of PaCo on long-tailed CIFAR-100, data included: the recipe against the authors' pipeline.

ResNet-32, batch 128, 84 steps. Steps of both are timed in turn on the same number of photo-like 32x32 images;
an epoch is that many steps. Before that both do one update from the same weights on the same views: equal
loss, and an equal update, in float32.
"""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.benchmarks import authors
from tests.benchmarks.harness import Row, gate, timed
from tests.data_fixtures import photo
from zoo.data import Batch, ImageDataset
from zoo.data.dataset import ImageStore
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training.build import open_loader
from zoo.training.precision import compiled, float32_products, place
from zoo.training.step import Stepper

RECIPE = "cifar_resnet32.paco_cifar100_lt100"
IMAGES, STEPS_AN_EPOCH = 1280, 84
CLASSES = 100


class Photos(ImageStore):
    """Images in memory, as CIFAR's are."""

    def __init__(self, count: int) -> None:
        self.arrays = np.stack([np.asarray(photo(32, 32, seed)) for seed in range(count)])
        super().__init__(self.arrays)


def rows(device: torch.device) -> Iterator[Row]:
    """Compare with the authors' pipeline of 0 workers (and, on a GPU, of 16)."""
    photos = Photos(IMAGES)
    counts = np.array([max(1, round(500 * 0.01 ** (c / 99))) for c in range(CLASSES)])
    labels = np.random.default_rng(0).choice(CLASSES, IMAGES, p=counts / counts.sum())
    labels[:CLASSES] = np.arange(CLASSES)  # every class has an image
    dataset = ImageDataset(photos, labels, [str(c) for c in range(CLASSES)], settings={"name": "photos"})
    if device.type == "cpu":
        for compile in ("null", "default"):
            yield _row(dataset, photos, device, compile, 0, 1.5)
    else:
        for workers, target in ((0, 40), (16, 8)):
            yield _row(dataset, photos, device, "reduce-overhead", workers, target)


def _row(
    dataset: ImageDataset, photos: Photos, device: torch.device, compile: str, workers: int, target: float
) -> Row:
    recipe = Recipe.load(RECIPE, [f"training.device={device.type}", f"training.compile={compile}"])
    loader = open_loader(dataset, recipe, device)
    equal = _gate(dataset, device, next(iter(loader.stream(0, 1))))
    objective = build_objective(recipe, dataset)
    place(objective, recipe, device)
    peer, optimizer = _peer(objective, recipe, device)
    stepper = Stepper(objective, recipe, STEPS_AN_EPOCH, device)

    ours = iter(enumerate(_for_ever(loader), recipe.training.epochs // 2 * STEPS_AN_EPOCH))
    two_views = authors.TwoViews(photos.arrays, dataset.labels, recipe.data.mean, recipe.data.std)
    theirs = authors.batches(two_views, recipe.training.batch_size, workers)

    def their_step() -> None:
        first, second, labels = (x.to(device, non_blocking=True) for x in next(theirs))
        with float32_products():
            _update(peer, optimizer, (first, second), labels)

    name = f"PaCo-R32 CIFAR epoch, data included, {recipe.training.precision}"
    note = f"training.compile: {compile}; steps of 128 images timed, x {STEPS_AN_EPOCH}"
    repeated = (40, 8) if device.type == "cuda" else (7, 2)
    both, whole = [lambda: stepper(*next(ours)), their_step], {"times": STEPS_AN_EPOCH, "note": note}
    with (
        compiled(objective, recipe.training.compile),
        float32_products(recipe.training.precision, fastest=True),
    ):
        rival = f"authors' pipeline, {workers} workers"
        return timed(name, rival, both, target, equal, device, *repeated, **whole)


def _for_ever(loader: Any) -> Iterator[Batch]:
    while True:
        yield from loader.stream(0, 100 * loader.steps_per_epoch)


def _peer(
    objective: Objective, recipe: Recipe, device: torch.device
) -> tuple[authors.PaCo, torch.optim.Optimizer]:
    """Give the authors' form the same weights, in its own layout and with its own optimizer."""
    peer = authors.PaCo(copy.deepcopy(objective).to(memory_format=torch.contiguous_format)).to(device)
    return peer, sgd(peer, recipe)


def sgd(peer: torch.nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return torch's SGD with the recipe's settings."""
    own = recipe.optimizer
    trained = [p for p in peer.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, own.lr, momentum=own.momentum, weight_decay=own.weight_decay)


def _update(
    peer: authors.PaCo, optimizer: torch.optim.Optimizer, views: authors.Views, labels: torch.Tensor
) -> float:
    loss = peer.loss(views, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()  # their meters read it at every step


def _gate(dataset: ImageDataset, device: torch.device, batch: Batch) -> str:
    """Do one update of both in the authors' memory layout: in another, other sums flip ReLUs near 0."""
    recipe = Recipe.load(RECIPE, [f"training.device={device.type}", "training.channels_last=false"])
    objective: Any = build_objective(recipe, dataset)
    place(objective, recipe, device)
    peer, optimizer = _peer(objective, recipe, device)
    before = [p.detach().clone() for p in objective.encoder.parameters()]
    stepper = Stepper(objective, recipe, STEPS_AN_EPOCH, device)
    with float32_products():
        ours = float(stepper(0, batch).loss)
        for group in optimizer.param_groups:
            group["lr"] = stepper.lr
        first, second = batch.views
        theirs = _update(peer, optimizer, (first, second), batch.labels)
    pairs = zip(before, objective.encoder.parameters(), peer.encoder.parameters(), strict=True)
    found = [((o - start).abs().max().item(), (o - p).abs().max().item()) for start, p, o in pairs]
    moved, difference = (max(each) for each in zip(*found, strict=True))
    loss = gate("loss of the first update", abs(ours - theirs) / abs(theirs), 1e-5)
    return f"{loss}, {gate('update of the encoder', difference / moved, 1e-3)}"
