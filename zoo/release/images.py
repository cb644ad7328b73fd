"""`images.safetensors`: which images a release was trained and measured on, whatever copy is at hand.

For each split that is listed its content ids `[N]`, int64 (`ImageList`); their hashes are in the header's
metadata, under one key, as safetensors writes several in any order: `{"sha256": '{"test": "...", ...}'}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from zoo.errors import ReleaseError
from zoo.files import write_text
from zoo.image_list import ImageList
from zoo.release import format, tensors

SPLITS = ("train", "test")


def write(lists: Mapping[str, ImageList], file: Path) -> None:
    """Write the lists of a release's splits."""
    hashes = json.dumps({split: lists[split].sha256 for split in sorted(lists)})
    ids = {split: torch.tensor(each.ids) for split, each in lists.items()}
    tensors.write_tensors(ids, file, {"sha256": hashes})


def read(folder: Path, config: Mapping[str, Any]) -> dict[str, ImageList]:
    """Return the lists of the release in `folder` by split; none where it has no such file.

    Raises:
        ReleaseError: when the file is missing, damaged, not the recorded one, or does not fit the release.
    """
    sha256 = config["zoo"].get("images_sha256")
    if sha256 is None:
        return {}
    file = folder / format.IMAGES
    header = tensors.read_header(file)
    if "train" not in header or {*header} - {*SPLITS}:
        raise ReleaseError(f"{file}: lists {', '.join(sorted(header))}, expected train, and test")
    for split, info in header.items():
        if info.dtype != torch.int64 or len(info.shape) != 1:
            found = f"{info.dtype} {list(info.shape)}"
            raise ReleaseError(f"{file}: {split}: found {found}, expected torch.int64 [N], a number an image")
    ids = tensors.read_tensors(file, sha256)
    try:
        with safe_open(file, framework="numpy") as stream:
            hashes = json.loads((stream.metadata() or {})["sha256"])
            lists = {split: ImageList(ids[split].numpy(), str(hashes[split])) for split in ids}
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise ReleaseError(f"{file}: its metadata lack the hashes of the lists: {error!r}") from None
    _check_hashes(lists, folder, config, file)
    return lists


def delete(folder: Path, config: Mapping[str, Any]) -> None:
    """Delete the list of the release in `folder`, and what its `config` says of it.

    Raises:
        ReleaseError: when the folder cannot be changed, or the images were found by a list themselves.
    """
    if config["zoo"]["dataset"].get("by_content"):
        raise ReleaseError(
            f"{folder}: its training images were found by the list of another release; without one nothing "
            "says which they are"
        )
    zoo = {key: value for key, value in config["zoo"].items() if key != format.HASHED[format.IMAGES]}
    try:
        write_text(folder / format.CONFIG, format.to_json({**config, "zoo": zoo}))
        (folder / format.IMAGES).unlink(missing_ok=True)  # afterwards: without its hash it is no part
    except OSError as error:
        raise ReleaseError(f"{folder}: cannot be changed: {error}") from None


def _check_hashes(
    lists: Mapping[str, ImageList], folder: Path, config: Mapping[str, Any], file: Path
) -> None:
    """Make sure that a list goes under no hash of other images: what is found by it is recorded by that."""
    dataset, train = config["zoo"]["dataset"], lists["train"].sha256
    if dataset.get("sha256") not in (None, train):
        raise ReleaseError(
            f"{file}: train has sha256 {train:.80}, the release was trained on {dataset['sha256']}"
        )
    entries = format.read_metrics(folder)["evaluations"]
    sets = [dataset, *(entry.get(f"{split}_set") or {} for entry in entries for split in SPLITS)]
    for split, each in lists.items():
        counts = {facts.get("num_images") for facts in sets if facts.get("sha256") == each.sha256}
        if counts - {None, len(each.ids)}:
            found = ", ".join(f"{count}" for count in counts)
            raise ReleaseError(f"{file}: {split} lists {len(each.ids)} images, recorded are {found}")
