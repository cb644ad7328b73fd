"""The authors' PaCo training on CIFAR, re-stated as a peer from what is known of it.

As their script runs it (PaCo/LT/paco_cifar.py in dvlab-research/Parametric-Contrastive-Learning): PIL
transforms in the main process (`workers` 0), contiguous float32, a loop over parameters for the moving
average, and a loss of materialised logits `[N, C + 2N + K]` with a mask of positives.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

Views = tuple[Tensor, Tensor]


def blur(image: Image.Image) -> Image.Image:
    """Gaussian blur by Pillow with a standard deviation from U(0.1, 2)."""
    return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def cutout(image: Tensor) -> Tensor:
    """A square of 16 pixels becomes zero."""
    y, x = (random.randrange(side) for side in image.shape[1:])
    mask = torch.ones(image.shape[1:])
    mask[max(0, y - 8) : y + 8, max(0, x - 8) : x + 8] = 0
    return image * mask


def view_transforms(mean: Sequence[float], std: Sequence[float]) -> list[transforms.Compose]:
    """Return the script's two augmentations: AutoAugment with Cutout, and SimCLR's."""
    end = [transforms.ToTensor(), transforms.Normalize(mean, std)]
    first = [
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10),
    ]
    second = [
        transforms.RandomResizedCrop(32, scale=(0.2, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.RandomApply([blur], p=0.5),
    ]
    return [transforms.Compose([*first, end[0], cutout, end[1]]), transforms.Compose([*second, *end])]


class TwoViews(Dataset[tuple[Tensor, Tensor, int]]):
    """Images `[N, H, W, 3]` as torchvision's CIFAR data sets give them, twice augmented."""

    def __init__(self, arrays: Any, labels: Any, mean: Sequence[float], std: Sequence[float]) -> None:
        self.arrays, self.labels, self.views = arrays, labels.tolist(), view_transforms(mean, std)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        image = Image.fromarray(self.arrays[index])
        first, second = (view(image) for view in self.views)
        return first, second, self.labels[index]


def batches(dataset: TwoViews, batch_size: int, workers: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield shuffled batches for ever."""
    while True:
        yield from DataLoader(dataset, batch_size, shuffle=True, drop_last=True, num_workers=workers)


def paco(q: Tensor, *samples: Tensor, alpha: float, tau: float) -> Tensor:
    """PaCo with every score in memory, and masks of N x (C + 2N + K)."""
    k, labels, queue, queue_labels, center_logits, log_prior = samples
    contrast_labels = torch.cat([labels, labels, queue_labels])
    logits = q @ torch.cat([q, k, queue]).T / tau
    itself = torch.zeros_like(logits, dtype=torch.bool)
    itself[:, : len(q)].fill_diagonal_(True)
    contrast = ~itself & (contrast_labels >= 0)
    positive = contrast & (labels[:, None] == contrast_labels)
    centers = center_logits + log_prior
    log_sum = torch.cat([centers, logits.masked_fill(~contrast, -torch.inf)], dim=1).logsumexp(dim=1)
    samples = torch.where(positive, logits - log_sum[:, None], 0).sum(dim=1)
    total = centers.gather(1, labels[:, None]).squeeze(1) - log_sum + alpha * samples
    return -(total / (1 + alpha * positive.sum(dim=1))).mean()


class PaCo(nn.Module):
    """Query and key encoder, queue and centers of one GPU's script, all of them those of our objective."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.encoder, self.head, self.classifier = own.encoder, own.head, own.learned.classifier
        self.key_encoder, self.key_head = own.teacher.module
        self.queue, self.queue_labels = nn.Buffer(own.queue.keys), nn.Buffer(own.queue.labels)
        self.prior, self.config, self.pointer = own.learned.log_prior, own.config, 0

    def loss(self, views: Views, labels: Tensor) -> Tensor:
        """Do all of a forward pass: moving average, keys, enqueue, loss."""
        features, config = self.encoder(views[0]), self.config
        q = F.normalize(self.head(features), dim=1)
        with torch.no_grad():
            for student, teacher in ((self.encoder, self.key_encoder), (self.head, self.key_head)):
                for p, p_key in zip(student.parameters(), teacher.parameters(), strict=True):
                    p_key.data = p_key.data * config.momentum + p.data * (1.0 - config.momentum)
            k = F.normalize(self.key_head(self.key_encoder(views[1])), dim=1)
        queue, queue_labels = self.queue.clone(), self.queue_labels.clone()
        logits = self.classifier(features)
        self.enqueue(k, labels)
        given = q, k, labels, queue, queue_labels, logits, self.prior
        return paco(*given, alpha=config.alpha, tau=config.tau)

    @torch.no_grad()
    def enqueue(self, keys: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest keys; the batch divides the queue."""
        end = self.pointer + len(keys)
        self.queue[self.pointer : end] = keys
        self.queue_labels[self.pointer : end] = labels
        self.pointer = end % len(self.queue)
