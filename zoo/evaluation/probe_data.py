"""Features of a data set's two parts under one encoder, each computed once and shared by every protocol."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Literal, Required, TypedDict, Unpack

import torch
from torch import Tensor, nn

from zoo.data import EvalView, ImageDataset, ViewsConfig, eval_images
from zoo.data.dataset import Split
from zoo.data.image_ids import shared_images
from zoo.data.labels import require_same_classes
from zoo.errors import DataError, ZooWarning
from zoo.evaluation.encode import Features, batch_size, extract
from zoo.recipe.protocols import Trained

_SAMPLE = 32  # images whose size is looked at before that of all, to choose a backend
_RESIDENT_SHARE = 4  # at most one part in so many of the memory is filled with decoded images


class Reading(TypedDict, total=False):
    """How images become features; what has no value is 0 or False.

    Attributes:
        view: size, crop and interpolation of the images.
        mean: channel means.
        std: channel standard deviations.
        device: where to encode.
        workers: processes that decode; 0: this one.
    """

    view: Required[EvalView]
    mean: Required[Sequence[float]]
    std: Required[Sequence[float]]
    device: Required[torch.device | str]
    workers: int


class ProbeData:
    """What a probe may know: the encoder, the training images, and features of the test images.

    The labels of the test images are no part of it, so that nothing can be chosen by them: `Encoded` keeps
    them for the final count.

    Args:
        model: headless encoder, images `[B, 3, S, S]` to features `[B, D]`.
        train_set: with its labels.
        encode_test: returns the features of the test images under an encoder `[N, D]`.
        reading: see `Reading`.
    """

    def __init__(
        self,
        model: nn.Module,
        train_set: ImageDataset,
        encode_test: Callable[[nn.Module], Tensor],
        **reading: Unpack[Reading],
    ) -> None:
        self.model, self.device = model, torch.device(reading["device"])
        self.train_set = train_set.with_candidates(None)  # probes read true labels
        self.encode_test = encode_test
        self.view, self.mean, self.std = reading["view"], list(reading["mean"]), list(reading["std"])
        self.workers = reading.get("workers", 0)

    @cached_property
    def train(self) -> Features:
        """Features of the training images under the evaluation view, and their labels."""
        return self.extract(self.model, self.train_set, "train")

    @cached_property
    def test(self) -> Tensor:
        """Features of the test images `[N, D]`."""
        return self.encode_test(self.model)

    def extract(self, model: nn.Module, dataset: ImageDataset, split: Split) -> Features:
        """Encode a data set, all or some images of `split`, under the evaluation view.

        Raises:
            DataError: for an unreadable image.
        """
        images = eval_images(
            dataset,
            self.view,
            self.mean,
            self.std,
            batch_size=batch_size(self.device, self.view.size),
            device=self.device,
            workers=self.workers,
            split=split,
        )
        return extract(model, images, device=self.device)

    def views(self, settings: Trained) -> ViewsConfig:
        """Return the recipe's section for training images that are augmented so."""
        backend = self.backend if settings.backend == "auto" else settings.backend
        train = [settings.view(self.view.size)]
        return ViewsConfig(backend=backend, workers=self.workers, train=train, eval=self.view)

    @cached_property
    def backend(self) -> Literal["tensor", "torchvision"]:
        """`tensor` if all training images have one size and fit into memory.

        Of all the device's memory, not of what is free: the two backends draw other numbers, and a figure
        must not depend on what else runs.
        """
        count = len(self.train_set)
        for indices in ({i * count // _SAMPLE for i in range(_SAMPLE)}, range(count)):  # most differ at once
            sizes: set[tuple[int, int]] = set()
            for index in indices:
                with suppress(DataError):  # the loader counts and reports it
                    sizes.add(self.train_set.size_of(index))
            if len(sizes) != 1:
                return "torchvision"
            width, height = sizes.pop()
            if 3 * width * height * count * _RESIDENT_SHARE >= total_memory(self.device):
                return "torchvision"
        return "tensor"

    @property
    def num_classes(self) -> int:
        """C."""
        return self.train_set.num_classes


class Encoded:
    """An encoder's features of one data set's training and test images, each computed once, when needed.

    Args:
        model: headless encoder, images `[B, 3, S, S]` to features `[B, D]`.
        train_set: with its long tail, as the encoder's training saw it; None for a protocol that reads none.
        test_set: balanced.
        reading: see `Reading`.

    Attributes:
        probe: what protocols work with.
        shared: how many test images are training images too.

    Raises:
        DataError: if the two sets have other classes.
    """

    def __init__(
        self,
        model: nn.Module,
        train_set: ImageDataset | None,
        test_set: ImageDataset,
        **reading: Unpack[Reading],
    ) -> None:
        if train_set is None:
            train_set = test_set.subset([])
        require_same_classes(train_set.class_names, test_set.class_names)
        self.shared = shared_images(train_set, test_set)
        if self.shared:
            warnings.warn(
                f"{self.shared} of {len(test_set)} test images are training images too: "
                "what is measured on them says nothing of new images",
                ZooWarning,
                stacklevel=2,
            )
        self.test_set = test_set
        self.probe = ProbeData(model, train_set, self._encode_test, **reading)

    def _encode_test(self, model: nn.Module) -> Tensor:
        return self.probe.extract(model, self.test_set, "test").features

    @property
    def train_set(self) -> ImageDataset:
        """The training images, without candidate labels; empty where none were given."""
        return self.probe.train_set

    @property
    def train(self) -> Features:
        """Features and labels of the training images."""
        return self.probe.train

    @property
    def test(self) -> Features:
        """Features and labels of the test images."""
        return Features(self.probe.test, torch.from_numpy(self.test_set.labels.copy()))


def total_memory(device: torch.device) -> int:
    """Return the bytes that `device` has, used or not; of a CPU on a system that does not tell, 8 GiB."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # macOS, Windows
        return 8 << 30
