"""One epoch of PaCo on long-tailed CIFAR-100, data included: the recipe against the authors' pipeline.

ResNet-32, batch 128, 84 steps. Steps of both are timed in turn on the same number of photo-like 32x32 images;
an epoch is that many steps. Before that both do one update from the same weights on the same views: equal
loss, and an equal update, in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
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
from zoo.training.precision import compiled, fastest_kernels, float32_products, place
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
    changes = [f"training.device={device.type}"]
    if device.type == "cpu":
        yield _row(dataset, photos, device, changes, 0, 1.5, "the recipe as it is shipped")
        changes.append("training.compile=default")
        yield _row(dataset, photos, device, changes, 0, 1.5, "with training.compile: default")
    else:
        changes.append("training.compile=reduce-overhead")
        for workers, target in ((0, 40), (16, 8)):
            yield _row(dataset, photos, device, changes, workers, target, ", ".join(changes))


def _row(
    dataset: ImageDataset,
    photos: Photos,
    device: torch.device,
    changes: list[str],
    workers: int,
    target: float,
    note: str,
) -> Row:
    recipe = Recipe.load(RECIPE, changes)
    loader = open_loader(dataset, recipe, device)
    equal = _gate(dataset, device, next(iter(loader.stream(0, 1))))
    objective = build_objective(recipe, dataset)
    place(objective, recipe, device)
    peer, optimizer = _peer(objective, recipe, device)
    stepper = Stepper(objective, recipe, STEPS_AN_EPOCH, device)

    ours = iter(enumerate(_for_ever(loader), recipe.training.epochs // 2 * STEPS_AN_EPOCH))
    pixels = torch.from_numpy(photos.arrays).permute(0, 3, 1, 2)
    two_views = authors.TwoViews(
        pixels, torch.from_numpy(dataset.labels.copy()), recipe.data.mean, recipe.data.std
    )
    theirs = authors.batches(two_views, recipe.training.batch_size, workers)

    def our_step() -> None:
        step, batch = next(ours)
        stepper(step, batch)

    def their_step() -> None:
        first, second, labels = (x.to(device, non_blocking=True) for x in next(theirs))
        with float32_products():
            _update(peer, optimizer, (first, second), labels)

    with compiled(objective, recipe.training.compile), fastest_kernels(device, recipe.training.precision):
        quick = device.type == "cuda"
        a, b = medians(
            [our_step, their_step], device=device, rounds=40 if quick else 7, warmup=8 if quick else 2
        )
    return Row(
        f"PaCo-R32 CIFAR epoch, data included, {recipe.training.precision}",
        f"authors' pipeline, {workers} workers",
        b / a,
        target,
        f"{a * STEPS_AN_EPOCH:.3g} s",
        f"{b * STEPS_AN_EPOCH:.3g} s",
        equal,
        note=f"{note}; steps of 128 images timed, x {STEPS_AN_EPOCH}",
    )


def _for_ever(loader: Any) -> Iterator[Batch]:
    while True:
        yield from loader.stream(0, 100 * loader.steps_per_epoch)


def _peer(
    objective: Objective, recipe: Recipe, device: torch.device
) -> tuple[authors.PaCo, torch.optim.Optimizer]:
    """Give the authors' form the same weights, in its own layout and with its own optimizer."""
    own: Any = copy.deepcopy(objective)
    own.to(memory_format=torch.contiguous_format)
    key_encoder, key_head = own.teacher.module
    config = recipe.objective
    peer = authors.PaCo(
        [own.encoder, own.head, key_encoder, key_head],
        own.learned.classifier,
        own.queue.keys,
        own.queue.labels,
        own.learned.log_prior,
        alpha=config.alpha,  # type: ignore[attr-defined]
        tau=config.tau,  # type: ignore[attr-defined]
        momentum=config.momentum,  # type: ignore[attr-defined]
    ).to(device)
    trained = [p for p in peer.parameters() if p.requires_grad]
    section = recipe.optimizer
    optimizer = torch.optim.SGD(
        trained, section.lr, momentum=section.momentum, weight_decay=section.weight_decay
    )
    return peer, optimizer


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
    moved, difference = 0.0, 0.0
    for start, p, other in zip(
        before, objective.encoder.parameters(), peer.encoder.parameters(), strict=True
    ):
        moved = max(moved, (other - start).abs().max().item())
        difference = max(difference, (other - p).abs().max().item())
    loss = gate("loss of the first update", abs(ours - theirs) / abs(theirs), 1e-5)
    return f"{loss}, {gate('update of the encoder', difference / moved, 1e-3)}"
