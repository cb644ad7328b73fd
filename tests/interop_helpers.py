"""Releases for the tests with timm and transformers, and what those libraries make of them.

Each library runs in a process of its own, which knows zoo only where the architecture is zoo's: what a
stranger has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import zoo
from tests.plain_timm import inputs
from tests.release_helpers import READS_FOLDERS, release_of, some_centers, trained_encoder
from zoo import backbones
from zoo.release import Preprocess, Release
from zoo.release.tensors import round_to_half


class Case(NamedTuple):
    """An architecture as small as its kind allows, with and without a crop, of both usual interpolations."""

    arch: str
    size: int
    model_args: dict[str, Any]
    crop_pct: float = 0.875
    interpolation: str = "bicubic"
    half: bool = False  # whether the files hold float16

    @property
    def is_timms(self) -> bool:
        """Whether timm knows it without zoo."""
        return not self.arch.startswith("cifar_")


BEIT = {"img_size": 64, "depth": 3, "embed_dim": 96, "num_heads": 4}
CASES = {
    "resnet": Case("resnet18", 32, {"output_stride": 8}, 1.0, "bilinear"),
    "vit with rotary positions": Case("eva02_tiny_patch14_224", 56, {"img_size": 56, "depth": 3}),
    "vit with relative positions": Case("beit_base_patch16_224", 64, BEIT, 0.9, "bilinear"),
    "convnext": Case("convnext_atto", 32, {"patch_size": 2}, 1.0),
    "cifar_resnet32": Case("cifar_resnet32", 32, {}, 0.875, "bilinear"),
    "in float16": Case("tf_efficientnet_lite0", 64, {}, 0.9, half=True),
}


def release_case(name: str, folder: Path) -> tuple[Release, nn.Module]:
    """Write the release of a case, with centers, and return it with the encoder it was made of."""
    case = CASES[name]
    encoder = trained_encoder(case.arch, **case.model_args)
    centers = some_centers(backbones.feature_dim(encoder))
    if case.half:
        encoder.load_state_dict(round_to_half(encoder.state_dict()))
        centers = centers._replace(**round_to_half(centers._asdict()))
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    release = release_of(
        folder,
        encoder,
        case.arch,
        case.size,
        model_args=case.model_args,
        preprocess=Preprocess(case.size, case.crop_pct, case.interpolation, mean, std),
        centers=centers,
        dtype="float16" if case.half else "float32",
    )
    return release, encoder


def picture(file: Path) -> Path:
    """Write a photograph's worth of pixels, neither square nor a multiple of anything."""
    pixels = torch.randint(0, 256, (53, 71, 3), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).resize((355, 265), Image.Resampling.BICUBIC).save(file)
    return file


def run_program(
    program: str, sources: Mapping[str, str], tmp: Path, **env: str
) -> dict[str, dict[str, Tensor]]:
    """Run `plain_timm.py` or `plain_transformers.py` on sources by case; return the tensors that it names."""
    found: dict[str, dict[str, Tensor]] = {name: {} for name in sources}
    code, image = Path(__file__).with_name(f"{program}.py"), str(picture(tmp / "picture.png"))
    for import_zoo in (False, True):
        models = {
            name: {"source": source, "size": CASES[name].size}
            for name, source in sources.items()
            if CASES[name].is_timms != import_zoo
        }
        request, out = tmp / f"{program}-{import_zoo}.json", tmp / f"{program}-{import_zoo}.safetensors"
        request.write_text(
            json.dumps({"import_zoo": import_zoo, "images": image, "out": str(out), "models": models})
        )
        root = {"PYTHONPATH": str(code.parent.parent) if import_zoo else ""}
        done = subprocess.run(
            [sys.executable, str(code), str(request)],
            cwd=tmp,
            env={**os.environ, **root, **env},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        for key, tensor in load_file(out).items():
            name, _, output = key.rpartition("/")
            found[name][output] = tensor
    return found


def timm_source(release: Release, hf_home: Path) -> str:
    """Return what timm loads a folder by: `local-dir:`, else `hf-hub:` and a cache made here."""
    if READS_FOLDERS:
        return f"local-dir:{release.path}"
    repo, sha = hf_home / "hub" / f"models--org--{release.path.name}", "0" * 40
    shutil.copytree(release.path, repo / "snapshots" / sha)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(sha)
    return f"hf-hub:org/{release.path.name}"


def labels(tensor: Tensor) -> list[str]:
    """Return the words that a program wrote as bytes."""
    return bytes(tensor.tolist()).decode().split("\n")


def zoo_outputs(name: str, source: str | Path, tmp: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield what zoo makes of a source, under the names of `plain_timm.outputs`."""
    images = inputs(CASES[name].size)
    with torch.no_grad():
        yield "features", zoo.load(source).eval()(images)
        yield "logits", zoo.load(source, head="centers").eval()(images)
        yield "gray", zoo.load(source, in_chans=1).eval()(images[:, :1])
        for index, feature_map in enumerate(zoo.load(source, features_only=True).eval()(images)):
            yield f"map{index}", feature_map
        yield "pixels", zoo.open(source).transform()(Image.open(picture(tmp / "picture.png")))
