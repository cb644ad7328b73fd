"""What looking at scores, gradients and centers adds to training.

Two trainings of the same weights do the same steps in turn, one with every step looked at and one with none;
both fetch the row of their metrics. A recipe looks at one step in `training.observe_every`: that is the share
of the difference that its step pays. The gates: the other training records no score, distance or gradient, so
that all of what looking costs is in the difference; after all steps both have the same weights, bit for bit.
On a GPU sums come in any order, and two trainings drift apart: weights are compared after the first steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.benchmarks.epoch import Photos
from tests.benchmarks.harness import Row, gate, medians, milliseconds
from zoo.data import ImageDataset, open_dataset
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training.build import open_loader
from zoo.training.logging import Metrics
from zoo.training.precision import fastest_kernels, place
from zoo.training.step import Stepper

DIGITS = ("cifar_resnet20.paco_digits_lt50", "cifar_resnet20.moco_v2_ft_digits_lt50")
CIFAR = ("cifar_resnet32.paco_cifar100_lt100", "resnet18_cifar.moco_v2_ft_cifar100")
R32 = ("name=cifar_resnet32.x", "backbone={arch: cifar_resnet32}", "training.batch_size=128")
AT_HAND = {"train_accuracy", "tau"}
IMAGES, CLASSES = 640, 100
FIRST = 10  # steps


def rows(device: torch.device) -> Iterator[Row]:
    """Measure PaCo and MoCo with FT on digits with ResNet-20, and at CIFAR's size with ResNet-32."""
    on = f"training.device={device.type}"
    for name in DIGITS:
        recipe = Recipe.load(name, [on])
        yield _row(recipe, open_dataset(recipe.data, "train", None), device, rounds=40)
    counts = np.array([max(1, round(500 * 0.01 ** (c / 99))) for c in range(CLASSES)])
    labels = np.random.default_rng(0).choice(CLASSES, IMAGES, p=counts / counts.sum())
    labels[:CLASSES] = np.arange(CLASSES)  # every class has an image
    photos = ImageDataset(
        Photos(IMAGES), labels, [str(c) for c in range(CLASSES)], settings={"name": "photos"}
    )
    graph = ["training.compile=reduce-overhead"] if device.type == "cuda" else []
    for name in CIFAR:
        for more in ([], graph) if graph else ([],):
            recipe = Recipe.load(name, [on, *R32, *more])
            yield _row(recipe, photos, device, rounds=15 if device.type == "cpu" else 200)


def _row(recipe: Recipe, dataset: ImageDataset, device: torch.device, *, rounds: int) -> Row:
    every = recipe.training.observe_every
    assert every is not None
    batch = next(iter(open_loader(dataset, recipe, device).stream(0, 1)))
    looked_at, plain = (_training(recipe, dataset, device, each) for each in (1, None))
    step = recipe.training.epochs // 2 * 100
    recorded = plain[0](step, batch).metrics.keys() - AT_HAND
    looked_at[0](step, batch)

    def do(training: tuple[Stepper, Metrics]) -> None:
        stepper, meter = training
        meter.add(stepper(step, batch), len(batch.index))
        meter.close({})
        meter.rows(wait=True)

    def drift() -> float:
        states = [training[0].objective.state_dict() for training in (looked_at, plain)]
        return max(_difference(value, states[1][key]) for key, value in states[0].items())

    green = gate("measures of an ordinary step", len(recorded), 0)
    with fastest_kernels(device, recipe.training.precision):
        if device.type == "cuda":
            for _ in range(FIRST):
                do(looked_at)
                do(plain)
            green += "; " + gate(f"largest difference of the states after {FIRST} steps", drift(), 0.05)
        a, b = medians(
            [lambda: do(looked_at), lambda: do(plain)],
            device=device,
            rounds=rounds,
            warmup=max(rounds // 8, 5),
        )
    if device.type == "cpu":
        one, other = (training[0].objective.state_dict() for training in (looked_at, plain))
        apart = sum(not torch.equal(value, other[key]) for key, value in one.items())
        green += "; " + gate("tensors of the state that differ", apart, 0)
    more = " compiled" if recipe.training.compile else ""
    return Row(
        f"observed {recipe.objective.name} step, {recipe.backbone.arch}, batch {len(batch.index)}{more}",
        "the step unobserved",
        1 + (a / b - 1) / every,
        1.01,
        milliseconds(b + (a - b) / every),
        milliseconds(b),
        green,
        at_most=True,
        note=f"a step that is looked at takes {milliseconds(a)}, one in {every} is",
    )


def _difference(a: Tensor, b: Tensor) -> float:
    """The norm of the difference by the norm, 0 for what is no number."""
    if not a.is_floating_point():
        return 0.0
    return float((a - b).norm() / b.norm().clamp_min(1e-3))


def _training(
    recipe: Recipe, dataset: ImageDataset, device: torch.device, every: int | None
) -> tuple[Stepper, Metrics]:
    section = recipe.training.model_copy(update={"observe_every": every})
    changed = recipe.model_copy(update={"training": section})
    torch.manual_seed(0)
    objective: Any = build_objective(changed, dataset)
    place(objective, changed, device)
    queue = objective.queue  # a full one: an empty one has nothing to score
    generator = torch.Generator(device).manual_seed(0)
    keys = torch.randn(queue.keys.shape, device=device, generator=generator)
    labels = torch.randint(len(dataset.class_names), (len(keys),), device=device, generator=generator)
    queue.enqueue(nn.functional.normalize(keys, dim=1), labels)
    return Stepper(objective, changed, 100, device), Metrics()
