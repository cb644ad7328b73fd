"""The linear probe on cached features against 100 epochs in which the frozen backbone runs again.

Both sides learn the same: softmax regression with one penalty on standardised features of the same images
under the evaluation view. The peer is a plain training loop as it is written without a cache, SGD with
Nesterov momentum and a cosine schedule: every epoch decodes and encodes every image; standardisation and rate
are given to it, and convolutions that do not round float32 on a GPU, as ours do not. Ours is
`zoo evaluate linear` up to the fitted weights, decoding included. All 100 epochs of the peer run; between
them ours is measured again and again.

What bounds the ratio: with equal speed of encoding it cannot pass the number of epochs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.harness import Row, gate, synchronize
from tests.data_fixtures import MEAN, STD, photo
from zoo import backbones
from zoo.data import ImageDataset
from zoo.data.dataset import ImageStore
from zoo.evaluation.encode import Encoder
from zoo.evaluation.linear import LinearClassifier, fit_linear
from zoo.evaluation.measure import ProbeData
from zoo.release import Preprocess
from zoo.training.precision import float32_products

EPOCHS = 100
CLASSES = 10
L2 = 1e-3
TARGET = 100


class Work(NamedTuple):
    """What is encoded by what."""

    arch: str
    size: int
    images: int


WORK = {"cpu": Work("cifar_resnet32", 32, 256), "cuda": Work("resnet50", 224, 1024)}


def rows(device: torch.device) -> Iterator[Row]:
    """Measure one probe."""
    work = WORK[device.type]
    torch.manual_seed(0)
    model = backbones.create(work.arch).to(device).eval()
    train_set, test_set = (_photos(work, seed) for seed in (0, work.images))
    _ours(model, train_set, test_set, work, device)  # warm-up
    peer = _Peer(model, train_set, device, _encoded(model, train_set, test_set, work, device))
    ours: list[float] = []
    theirs = 0.0
    for epoch in range(EPOCHS):
        theirs += _seconds(lambda epoch=epoch: peer.epoch(epoch), device)
        if epoch % 10 == 0:
            ours.append(_seconds(lambda: _ours(model, train_set, test_set, work, device), device))
    probe = _ours(model, train_set, test_set, work, device)
    features = _encoded(model, train_set, test_set, work, device).test
    other = peer.predict(features.to(device)).to(probe.weight.device)
    disagree = (probe.predict(features) != other).float().mean().item()
    equal = gate("predictions", disagree, 0.01)
    seconds = statistics.fmean(ours)  # as a sum of 100 epochs is one of means
    yield Row(
        f"linear probe, {EPOCHS} epochs, {work.arch}, {work.images} images of {work.size} px",
        "frozen backbone each epoch",
        theirs / seconds,
        TARGET,
        f"{seconds:.3g} s",
        f"{theirs:.3g} s",
        equal,
        note=f"all {EPOCHS} epochs of the peer ran; ours is the mean of {len(ours)} between them",
    )


def _photos(work: Work, seed: int) -> ImageDataset:
    pixels = np.stack([np.asarray(photo(work.size, work.size, seed + i)) for i in range(work.images)])
    labels = np.arange(work.images) % CLASSES
    names = [str(c) for c in range(CLASSES)]
    return ImageDataset(ImageStore(pixels), labels, names)


def _encoded(model: nn.Module, train: ImageDataset, test: ImageDataset, work: Work, device: Any) -> ProbeData:
    preprocess = Preprocess(work.size, 1.0, "bilinear", tuple(MEAN), tuple(STD))
    return ProbeData(Encoder(model, preprocess, device=torch.device(device)), train, test)


def _ours(
    model: nn.Module, train: ImageDataset, test: ImageDataset, work: Work, device: torch.device
) -> LinearClassifier:
    features, labels = _encoded(model, train, test, work, device).train
    return fit_linear(features.to(device), labels, CLASSES, l2_grid=[L2])


class _Peer:
    """A training loop around the frozen backbone; `epoch` is one pass over the images."""

    def __init__(self, model: nn.Module, data: ImageDataset, device: torch.device, probe: ProbeData) -> None:
        features, labels = (tensor.to(device) for tensor in probe.train)
        self.scale, self.center = torch.std_mean(features, dim=0, correction=0)
        self.scale = self.scale.clamp(min=1e-6)
        x = F.pad((features - self.center) / self.scale, (0, 1), value=1.0)
        self.model, self.data, self.labels, self.device = model, data, labels, device
        self.mean = torch.tensor(MEAN, device=device).view(3, 1, 1)
        self.std = torch.tensor(STD, device=device).view(3, 1, 1)
        self.parameters = torch.zeros(CLASSES, features.shape[1] + 1, device=device, requires_grad=True)
        # the inverse of the loss's largest curvature, at most 1/2 X'X / N + l2 (Böhning 1992)
        rate = 1 / (0.5 * float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1]) + L2)
        self.optimizer = torch.optim.SGD([self.parameters], lr=rate, momentum=0.9, nesterov=True)
        self.batches = -(-len(data) // 1024)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, EPOCHS * self.batches)
        self.generator = torch.Generator().manual_seed(0)

    def epoch(self, number: int) -> None:
        """Decode, encode and learn from every image once."""
        for rows in torch.randperm(len(self.data), generator=self.generator).split(1024):
            with torch.no_grad(), float32_products():  # as `extract` does
                features = torch.cat([self.model(self._images(part)) for part in rows.split(256)])
            logits = self._logits(features)
            penalty = 0.5 * L2 * self.parameters[:, :-1].square().sum()
            loss = F.cross_entropy(logits, self.labels[rows.to(self.device)]) + penalty
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()

    def predict(self, features: Tensor) -> Tensor:
        """Return the classes `[N]` of features `[N, D]`."""
        return self._logits(features).argmax(dim=1)

    def _logits(self, features: Tensor) -> Tensor:
        x = (features - self.center) / self.scale
        return x @ self.parameters[:, :-1].T + self.parameters[:, -1]

    def _images(self, rows: Tensor) -> Tensor:
        decoded = [torch.from_numpy(np.array(self.data.image(row))) for row in rows.tolist()]
        pixels = torch.stack(decoded).to(self.device).permute(0, 3, 1, 2).float()
        return (pixels / 255 - self.mean) / self.std


def _seconds(function: Any, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start
