"""Small objectives of every kind, and batches for them; backbones without BatchNorm."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from pydantic import TypeAdapter
from torch import nn

from zoo import backbones
from zoo.objectives import SHIPPED, Batch, DataInfo, Objective, Output, objective_class

HEAD = dict(dim=8, head_layers=2, head_hidden=16, head_batchnorm=True)
QUEUE = HEAD | dict(queue_size=20, tau=0.2)
MOMENTUM = QUEUE | dict(momentum=0.9, key_groups=1)

SETTINGS: dict[str, dict[str, Any]] = {
    "bcl": HEAD | dict(tau=0.2),
    "classify": {},
    "gpaco": QUEUE | dict(tau=0.05),
    "margin": HEAD,
    "moco": MOMENTUM | dict(head_batchnorm=False),
    "moco_v3": dict(dim=8, head_hidden=16, projector_layers=2, predictor_batchnorm=False)
    | dict(freeze_patch_embedding=False, sincos_positions=False),
    "paco": MOMENTUM | dict(tau=0.05),
    "pico": MOMENTUM | dict(prototype_momentum=0.9),
    "simclr": HEAD | dict(tau=0.2),
    "sup_con": MOMENTUM,
}

QUEUED = [name for name, settings in SETTINGS.items() if "queue_size" in settings]
WITH_TEACHER = [name for name, settings in SETTINGS.items() if "key_groups" in settings]

COUNTS = torch.tensor([60, 30, 10])
LABELS = torch.arange(100) % 3
CANDIDATES = (torch.arange(300).reshape(100, 3) * 7 % 5 < 2) | (LABELS[:, None] == torch.arange(3))
INFO = DataInfo(COUNTS, CANDIDATES)

FT = {
    "positives": {"alpha": 2.0, "per": "dimension"},
    "negatives": {"alpha": 1.6, "per": "dimension", "keep_originals": False},
    "renormalize": False,
    "start_epoch": 2,
}


def config(name: str, **changes: Any) -> Any:
    """The section of a recipe, checked by its schema."""
    return TypeAdapter(SHIPPED[name]).validate_python({"name": name} | SETTINGS[name] | changes)


def build(name: str, info: DataInfo = INFO, **changes: Any) -> Any:
    """An objective with random weights, always the same."""
    torch.manual_seed(0)
    return objective_class(name)(config(name, **changes), backbones.create("cifar_resnet20"), info)


def batch(seed: int = 0, size: int = 6, views: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = tuple(torch.randn(size, 3, 8, 8, generator=generator) for _ in range(views))
    index = torch.randperm(100, generator=generator)[:size]
    return Batch(images, LABELS[index], index, CANDIDATES[index])


def step(objective: Objective, data: Batch, lr: float = 0.1) -> Output:
    """One update by plain gradient descent."""
    parameters = [p for p in objective.parameters() if p.requires_grad]
    output = objective(data)
    for p, g in zip(parameters, torch.autograd.grad(output.loss, parameters), strict=True):
        p.data.sub_(g, alpha=lr)
    objective.update(data, output)
    return output


VIT = ("name=test_vit.x", "backbone.arch=test_vit", "backbone.args={img_size: 32, patch_size: 8}")
"""Changes of a recipe: an encoder without BatchNorm."""


class RowNorm(nn.GroupNorm):
    """In the place of a head's BatchNorm: statistics are of each row."""

    def __init__(self, features: int, **_: object) -> None:
        super().__init__(4, features)


@contextmanager
def norm_free() -> Iterator[None]:
    """Build every backbone and head with GroupNorm in place of BatchNorm inside the block."""
    create = backbones.create

    def without(arch: str, **args: object) -> nn.Module:
        return grouped(create(arch, **args))

    heads = mock.patch.object(nn, "BatchNorm1d", RowNorm)
    with heads, mock.patch.object(backbones, "create", without):
        yield


def grouped(module: nn.Module) -> nn.Module:
    """Replace BatchNorm2d by GroupNorm of 4 groups, in place."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(4, child.num_features))
        else:
            grouped(child)
    return module
