"""Checkpoints that authors publish under a plain address, by name: fetched once, checked, and kept."""

from __future__ import annotations

import hashlib
import http.client
import shutil
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import rich.progress
import torch
from rich.console import Console

from zoo.errors import ReleaseError, did_you_mean
from zoo.files import is_file, write_atomic

_SECONDS = 60.0  # without a byte
_FAIR = "https://dl.fbaipublicfiles.com"


class Published(NamedTuple):
    """A checkpoint on its authors' server.

    Attributes:
        url: where it lies, as the authors' repository says.
        family: whose layout it has, a key of `FAMILIES`.
        arch: of its encoder, in timm.
        md5: the beginning of it, as the repository says; "" where it says none.
    """

    url: str
    family: str
    arch: str
    md5: str = ""


PUBLISHED: dict[str, Published] = {
    **{  # github.com/facebookresearch/moco, README.md, "Models" (commit 5670021)
        f"resnet50.moco_{tag}": Published(
            f"{_FAIR}/moco/moco_checkpoints/moco_{tag}/moco_{tag}_pretrain.pth.tar", "moco", "resnet50", md5
        )
        for tag, md5 in (("v1_200ep", "b251726a"), ("v2_200ep", "59fd9945"), ("v2_800ep", "a04e12f8"))
    },
    **{  # github.com/facebookresearch/moco-v3, CONFIG.md (commit 38aae44)
        f"{arch}.moco_v3_{epochs}ep": Published(
            f"{_FAIR}/moco-v3/{short}-{epochs}ep/{short}-{epochs}ep.pth.tar", "moco-v3", arch
        )
        for arch, short, epochs in (
            ("resnet50", "r-50", 100),
            ("resnet50", "r-50", 300),
            ("resnet50", "r-50", 1000),
            ("vit_small_patch16_224", "vit-s", 300),
            ("vit_base_patch16_224", "vit-b", 300),
        )
    },
}
"""Name of the weights -> the checkpoint; all are of ImageNet-1k."""


def published(name: str) -> Published:
    """Return the checkpoint of that name.

    Raises:
        ReleaseError: for another name.
    """
    if name not in PUBLISHED:
        hint = did_you_mean(name, PUBLISHED) or f" By name there are {', '.join(PUBLISHED)}"
        raise ReleaseError(f'no file "{name}", and no checkpoint that can be fetched by that name.{hint}')
    return PUBLISHED[name]


def fetch(name: str) -> Path:
    """Return the file of a published checkpoint, fetched where torch keeps such files and does not have it.

    Raises:
        ReleaseError: when it cannot be fetched, or is not the file that the authors' repository names.
    """
    entry = published(name)
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(entry.url).path).name
    try:
        if not is_file(file):
            write_atomic(file, lambda temporary: _download(entry.url, temporary))
        with file.open("rb") as opened:
            md5 = hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ReleaseError(
            f"{name}: cannot be fetched from {entry.url}: {error}. Fetch it in another way, then give the "
            f"file: zoo convert FILE --family {entry.family} --arch {entry.arch}"
        ) from None
    if not md5.startswith(entry.md5):
        raise ReleaseError(
            f"{name}: {file}: found MD5 {md5}, expected {entry.md5}... as its authors say; delete it, then "
            "give the same command again"
        )
    return file


def _download(url: str, file: Path) -> None:
    with urlopen(url, timeout=_SECONDS) as answer, file.open("wb") as out:
        size = int(answer.headers.get("Content-Length") or 0)
        console = Console(stderr=True)
        with rich.progress.wrap_file(answer, total=size, description=file.name, console=console) as stream:
            shutil.copyfileobj(stream, out)
    if size and (found := file.stat().st_size) != size:  # the connection ended before the file did
        raise OSError(f"found {found:,} bytes, expected {size:,}")
