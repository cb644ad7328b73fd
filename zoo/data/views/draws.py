"""Random numbers for the images of a batch, and changes of those that were drawn."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Generator, Tensor


class Draws:
    """Numbers drawn for a batch of `total` images, cut to those from `start` to before `stop`.

    Every rank draws for the whole batch, so that no image's numbers depend on the number of ranks.
    """

    def __init__(self, generator: Generator, total: int, start: int = 0, stop: int | None = None) -> None:
        self._generator, self._total, self._start = generator, total, start
        self._count = (total if stop is None else stop) - start

    def rand(self, *shape: int | None) -> Tensor:
        """Return numbers from U[0, 1) of a shape that has None in the place of the images."""
        sizes = [self._total if size is None else size for size in shape]
        drawn = torch.rand(sizes, generator=self._generator, device=self._generator.device)
        return drawn.narrow(shape.index(None), self._start, self._count)

    def uniform(self, low: float, high: float, *columns: int) -> Tensor:
        """Return numbers from U[low, high) `[B, *columns]`."""
        return self.rand(None, *columns) * (high - low) + low

    def randint(self, high: Tensor | float) -> Tensor:
        """Return an integer from 0 to `high` - 1 for each image `[B]`, float; `high`: `[B]` or a number."""
        return (self.rand(None) * high).floor_().clamp_(max=high - 1)  # rounding may reach `high` itself

    def chosen(self, p: float) -> Tensor:
        """Return for which images something of probability `p` happens `[B]`, bool."""
        return self.rand(None) < p


def can_look(device: torch.device) -> bool:
    """Whether values may decide what is computed: elsewhere than on the CPU the host would wait for them."""
    return device.type == "cpu"


def only(chosen: Tensor, change: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    """Return `images` with those that are `chosen` `[B]` replaced by `change(images, *parameters)`.

    `change` is a function of each image alone; its result has the shape of `images` `[B, ...]`.
    """
    if can_look(images.device):
        index = chosen.nonzero()[:, 0]
        if len(index) == 0:
            return images
        changed = change(*(each.index_select(0, index) for each in (images, *parameters)))
        return images.index_copy(0, index, changed)
    return torch.where(chosen.view(-1, *[1] * (images.dim() - 1)), change(images, *parameters), images)


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return `values` on `device`, copied there once: each copy waits for the device."""
    return torch.tensor(values, device=device)
