"""On paper, for a GPU: what views and a step would launch, counted where PyTorch dispatches its operations.

Images of the views are on the device "meta", which computes nothing and where to look at a value is an error.
The peer is what the views did before the host drew which images an operation is for: all of them, each time.
"""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.benchmarks.harness import Row, gate
from tests.benchmarks.views import moco
from tests.data_fixtures import MEAN, STD, digits
from zoo.data import TensorViews
from zoo.data.batches import Batch
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training.step import Stepper


class Counted(TorchDispatchMode):
    """Counts operations on tensors of a device, and the bytes that they read and write; views are free.

    Of a tensor that rows are taken from, or put into, only these count.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.launches, self.bytes = device, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, found)) if isinstance(each, Tensor)]
        own = [each for each in tensors if each.device.type == self.device]
        name = func.overloadpacket.__name__
        if own and not func.is_view and name != "_unsafe_view":
            self.launches += 1
            if name in ("index_select", "index_copy_"):
                own = 2 * [found if name == "index_select" else args[3]]
            self.bytes += sum(min(each.nbytes, each.untyped_storage().nbytes()) for each in own)
        return found


def rows(device: torch.device) -> Iterator[Row]:
    """Count both; the machine does not matter."""
    if device.type == "cpu":
        augmented = TensorViews([moco(224, 23)[0][1:]] * 2, MEAN, STD)
        pixels = torch.empty(256, 3, 224, 224, dtype=torch.uint8, device="meta")

        def views() -> tuple[Tensor, ...]:
            return augmented(pixels, torch.Generator().manual_seed(0))

        ours, shapes = _count("meta", views)
        with patch("zoo.data.views.transforms.only", _all):
            theirs, expected = _count("meta", views)
        equal = gate("shapes that differ", sum(a != b for a, b in zip(shapes, expected, strict=True)), 0)
        name = "bytes of two MoCo-v2 views at 224x224 of 256 crops from workers, on paper"
        told = [f"{each.bytes / 1e9:.1f} GB, {each.launches} launches" for each in (ours, theirs)]
        ratio, peer = theirs.bytes / ours.bytes, "each operation on all images"
        yield Row(
            name, peer, ratio, 1.5, *told, gate=equal, note=f"a PaCo step launches {_step()} operations"
        )


def _count(device: str, function: Callable[[], Any]) -> tuple[Counted, Any]:
    with Counted(device) as counted:
        made = function()
    return counted, [each.shape for each in made]


def _all(chosen: Tensor, change: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    changed, where = change(images, *parameters), chosen.to(images.device)
    return torch.where(where.view(-1, *[1] * (images.dim() - 1)), changed, images)


def _step() -> int:
    """Return how many operations one step of PaCo with ResNet-32 dispatches."""
    recipe = Recipe.load("cifar_resnet32.paco_cifar100_lt100", ["training.observe_every=null"])
    objective = build_objective(recipe, digits(500))
    stepper = Stepper(objective, recipe, 10, torch.device("cpu"))
    views = tuple(torch.randn(2, 128, 3, 32, 32))
    batch = Batch(views, torch.arange(128) % 10, torch.arange(128))
    stepper(0, batch)
    with Counted("cpu") as counted:
        stepper(1, batch)
    return counted.launches
