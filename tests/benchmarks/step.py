"""A whole MoCo-v2 step on views that lie on the device: ours against lightly's modules put together as in its
example, with the same backbone, sizes and precision, in the faster memory layout; the floor is both encoders.

The gate compares the losses at the start, with equal weights, batch and queue.
"""

import copy
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from lightly.loss import NTXentLoss
from lightly.models.utils import deactivate_requires_grad, update_momentum
from torch import nn

from tests.benchmarks.epoch import Photos, sgd
from tests.benchmarks.harness import Row, gate, timed
from zoo.data import Batch, ImageDataset
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training.precision import compiled, float32_products, place
from zoo.training.step import Stepper


class Lightly(nn.Module):
    """MoCo of lightly's example: keys are encoded by moving averages, NTXentLoss holds the queue."""

    def __init__(self, backbone: nn.Module, head: nn.Module, dim: int, queue: int, tau: float) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.key_backbone, self.key_head = copy.deepcopy(self.backbone), copy.deepcopy(self.head)
        deactivate_requires_grad(self.key_backbone)
        deactivate_requires_grad(self.key_head)
        self.criterion = NTXentLoss(temperature=tau, memory_bank_size=(queue, dim))

    def forward(self, views: tuple[torch.Tensor, ...]) -> torch.Tensor:
        q = self.head(self.backbone(views[0]).flatten(start_dim=1))
        with torch.no_grad():
            k = self.key_head(self.key_backbone(views[1]).flatten(start_dim=1))
        loss: torch.Tensor = self.criterion(q, k)
        return loss

    def update_teacher(self, momentum: float) -> None:
        update_momentum(self.backbone, self.key_backbone, momentum)
        update_momentum(self.head, self.key_head, momentum)


def rows(device: torch.device) -> Iterator[Row]:
    """ResNet-50 at 224 pixels on a GPU; ResNet-18 at 32 on a CPU, where encoders are all of a step."""
    if device.type == "cuda":
        fast = ["training.compile=reduce-overhead"]
        yield _row(device, "resnet50.moco_v2_in1k", 224, 256, 65536, fast, 1.8)
        yield _row(device, "resnet50.moco_v2_in1k", 224, 256, 65536, [], 0.9)  # no slower
    else:
        for precision in ("fp32", "bf16"):
            changes = [f"training.precision={precision}"]
            yield _row(device, "resnet18_cifar.moco_v2_cifar10", 32, 64, 4096, changes, 1.1)


def _row(
    device: torch.device, name: str, size: int, batch_size: int, queue: int, changes: list[str], target: float
) -> Row:
    gpu = device.type == "cuda"
    settings = [
        *(f"training.device={device.type}", f"training.batch_size={batch_size}", "training.drop_last=true"),
        *(f"objective.queue_size={queue}", "objective.key_groups=1", "objective.head_batchnorm=false"),
        "objective.momentum=0.99",
    ]
    recipe = Recipe.load(name, [*settings, *changes])
    config: Any = recipe.objective
    labels = np.arange(2 * batch_size) % 2
    dataset = ImageDataset(Photos(1), labels, ["a", "b"], settings={"name": "noise"})
    generator = torch.Generator(device).manual_seed(0)
    draw = partial(torch.randn, device=device, generator=generator)
    views = tuple(draw(batch_size, 3, size, size) for _ in range(2))
    batch = Batch(views, torch.zeros(batch_size, dtype=torch.int64, device=device), torch.arange(batch_size))

    objective: Any = build_objective(recipe, dataset)
    place(objective, recipe, device)
    keys = nn.functional.normalize(draw(queue, config.dim), dim=1)
    objective.queue.enqueue(keys, torch.zeros(queue, dtype=torch.int64, device=device))
    layouts = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
    peers = {layout: _peer(objective, memory_format, keys) for layout, memory_format in layouts.items()}
    equal = _gate(objective, peers["contiguous"], batch)

    stepper, step = Stepper(objective, recipe, 2, device), count()
    low = torch.float16 if gpu else torch.bfloat16
    mixed = torch.autocast(device.type, low, enabled=gpu or recipe.training.precision == "bf16")
    scaler = torch.amp.GradScaler(device.type, enabled=gpu)

    def their_step(peer: Lightly, optimizer: torch.optim.Optimizer) -> None:
        peer.update_teacher(config.momentum)
        with mixed:
            loss = peer(views)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    def encoders() -> None:
        with stepper.autocast:
            objective.teacher(views[1])
            loss = objective.head(objective.encoder(views[0])).float().sum()
        loss.backward()

    theirs = [partial(their_step, peer, sgd(peer, recipe)) for peer in peers.values()]
    forms = [lambda: stepper(min(next(step), stepper.steps - 1), batch), *theirs]
    row_name = f"MoCo-v2 step, {recipe.backbone.arch} at {size}, batch {batch_size}, K {queue:,}"
    precision = f"{recipe.training.precision} against 16-mixed" if gpu else recipe.training.precision
    names, repeated = [f"lightly, {layout}" for layout in peers], (30, 10) if gpu else (9, 2)
    with (
        compiled(objective, recipe.training.compile),
        float32_products(recipe.training.precision, fastest=True),
    ):
        row_name = f"{row_name}, {precision}"
        return timed(row_name, names, forms, target, equal, device, *repeated, floor=encoders)


def _peer(objective: Any, layout: torch.memory_format, keys: torch.Tensor) -> Lightly:
    networks = copy.deepcopy((objective.encoder, objective.head))  # its head has the same layers as ours
    config = objective.config
    peer = Lightly(*networks, config.dim, len(keys), config.tau).to(keys.device, memory_format=layout).train()
    bank = peer.criterion.memory_bank
    peer.criterion(torch.randn_like(keys[:2]), torch.randn_like(keys[:2]))  # makes the bank
    bank.bank.copy_(keys.T if bank.bank.shape != keys.shape else keys)
    return peer


def _gate(objective: Any, peer: Lightly, batch: Batch) -> str:
    with torch.no_grad():
        a, b = copy.deepcopy(objective)(batch).loss, copy.deepcopy(peer)(batch.views)
    return gate("loss at the start", abs(float(a) - float(b)) / abs(float(b)), 1e-3)
