"""Everything that must hold of a release's files before others get it."""

from __future__ import annotations

from pathlib import Path

import torch

from zoo import backbones
from zoo.errors import ReleaseError
from zoo.release import build, configs, format, history, images
from zoo.release.release import Release
from zoo.release.tensors import check_centers, read_tensors


def check_release(release: Release) -> None:
    """Make sure that `release` is whole and that its parts agree.

    Its files are its own, not links to others; weights, centers, list of images and recipe have their
    recorded hashes; the weights are those of the architecture; centers fit, and are the classifier where
    there is one. The card is for `card.check_card`.

    Raises:
        ReleaseError: naming the first file that is not as it should be.
    """
    folder = release.path
    for name in (*format.NEEDED, format.CARD, *format.OPTIONAL):
        for file in folder.glob(name):
            _check_own(file)
    config = configs.read_config(folder)
    if config != release.config:
        raise ReleaseError(
            f"{folder / format.CONFIG}: has changed since the release was opened; open it again"
        )
    format.read_recipe(folder)  # what bounds the files' sizes comes before what reads every byte of them
    model, _ = build.check_fit(folder, config, config["num_classes"])
    found, recorded = backbones.feature_dim(model), config["zoo"]["feature_dim"]
    if found != recorded:
        raise ReleaseError(
            f"{folder / format.CONFIG}: feature_dim is {recorded}, the model has {found} features"
        )
    if config["zoo"]["has_centers"]:
        check_centers(folder, config)
    if (folder / format.IMAGES).exists() and not config["zoo"].get("images_sha256"):
        raise ReleaseError(
            f"{folder / format.IMAGES}: no part of the release, {format.CONFIG} has no hash of it"
        )
    release.verify()
    images.read(folder, config)
    _check_classifier(release)
    format.read_metrics(folder)
    history.read(folder)
    format.read_text(folder / format.CARD)


def _check_own(file: Path) -> None:
    """Refuse a link out of the folder: with the release, it would publish what it points to."""
    target, folder = file.resolve(), file.parent.resolve()
    blobs = folder.parent.parent / "blobs"  # where huggingface_hub's cache keeps the files of a snapshot
    if target.parent != folder and not (folder.parent.name == "snapshots" and target.parent == blobs):
        raise ReleaseError(f"{file}: links to {target}, outside the release; put the file itself there")


def _check_classifier(release: Release) -> None:
    centers, config = release.centers, release.config
    if centers is None or not config["num_classes"]:
        return
    file, classifier = release.path / format.WEIGHTS, config["pretrained_cfg"]["classifier"]
    weights = read_tensors(file, config["zoo"]["weights_sha256"])
    for part in ("weight", "bias"):
        if not torch.equal(weights[f"{classifier}.{part}"], getattr(centers, part)):
            raise ReleaseError(f"{file}: {classifier}.{part} is not the {part} in {format.CENTERS}")
