"""The authors' PaCo training on CIFAR: their own files where there is a folder of them, else re-stated.

As their script runs it (PaCo/LT/paco_cifar.py in dvlab-research/Parametric-Contrastive-Learning): PIL
transforms in the main process (`workers` 0), contiguous float32, a loop over parameters for the moving
average, and a loss of materialised logits `[N, C + 2N + K]` with a mask of positives.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

Views = tuple[Tensor, Tensor]
folder: Path | None = None  # PaCo/LT of their repository, which is not part of this one


def file(name: str) -> Any:
    """Import one of the authors' files; they were written for NumPy 1."""
    assert folder is not None
    with mock.patch.object(sys, "path", [str(folder), *sys.path]), mock.patch.dict(vars(np), int=int):
        return import_module(name)


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
    policy: Any = transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10)
    hole, soft = cutout, blur
    if folder is not None:
        with mock.patch.dict(vars(np), int=int):
            policy, hole = file("autoaug").CIFAR10Policy(), file("autoaug").Cutout(n_holes=1, length=16)
        soft = file("moco.loader").GaussianBlur([0.1, 2.0])
    first = [
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        policy,
    ]
    second = [
        transforms.RandomResizedCrop(32, scale=(0.2, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.RandomApply([soft], p=0.5),
    ]
    return [transforms.Compose([*first, end[0], hole, end[1]]), transforms.Compose([*second, *end])]


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


def paco_file(q: Tensor, *samples: Tensor, alpha: float, tau: float) -> Tensor:
    """`paco` by the authors' file."""
    k, labels, queue, queue_labels, logits, log_prior = samples
    loss = file("losses").PaCoLoss(alpha, temperature=tau, K=len(queue), num_classes=len(log_prior))
    loss.weight = log_prior.exp()[None]
    value: Tensor = loss(torch.cat([q, k, queue]), torch.cat([labels, labels, queue_labels]), logits)
    return value


class PaCo(nn.Module):
    """Query and key encoder, queue and centers of one GPU's script, all of them those of our objective."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.encoder, self.head, self.classifier = own.encoder, own.head, own.classifier
        self.key_encoder, self.key_head = own.teacher.module
        self.queue, self.queue_labels = nn.Buffer(own.queue.keys), nn.Buffer(own.queue.labels)
        self.prior, self.config, self.pointer = own.log_prior, own.config, 0

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


class Files(nn.Module):
    """The authors' own model and loss on one device, with the weights and the queue of our objective."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        config, classes = own.config, len(own.log_prior)
        sizes = (config.dim, config.queue_size, config.momentum, config.tau, True, 64, False, classes)
        self.moco = file("moco.builder").MoCo(file("models.resnet_cifar").resnet32, *sizes)
        given = {"alpha": config.alpha, "temperature": config.tau, "K": config.queue_size}
        self.criterion = file("losses").PaCoLoss(**given, num_classes=classes)
        self.criterion.weight = own.log_prior.exp()[None]
        with torch.no_grad():
            for model in (self.moco.encoder_q, self.moco.encoder_k):
                body = [each for name, each in model.named_parameters() if not name.startswith("fc.")]
                for theirs, ours in zip(body, own.encoder.parameters(), strict=True):
                    theirs.copy_(ours)
                for place, layer in enumerate(own.head):
                    model.fc[place].load_state_dict(layer.state_dict(), strict=False)
                model.fc[0].bias.zero_()  # before BatchNorm it is nothing; ours has none
            self.moco.linear.load_state_dict(own.classifier.state_dict())
            self.moco.queue.copy_(own.queue.keys)
            self.moco.queue_l.copy_(own.queue.labels)
        if not dist.is_initialized():  # they shuffle over ranks
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    @property
    def encoder(self) -> nn.Module:
        """Their query encoder; its projection comes last."""
        return self.moco.encoder_q  # type: ignore[no-any-return]

    def loss(self, views: Views, labels: Tensor) -> Tensor:
        """Do all of a forward pass, on the device of the images."""
        with mock.patch.object(Tensor, "cuda", lambda self, *_: self.to(views[0].device)):
            features, targets, logits = self.moco(im_q=views[0], im_k=views[1], labels=labels)
        loss: Tensor = self.criterion(features.float(), targets, logits.float())
        return loss
