"""Releases for the tests with timm and transformers, small ones of every kind."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from tests.release_helpers import release_of, some_centers, trained_encoder
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
        centers = centers._replace(**round_to_half(centers.tensors()))
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    preprocess = Preprocess(case.size, case.crop_pct, case.interpolation, mean, std)
    given = {"centers": centers, "preprocess": preprocess, "dtype": "float16" if case.half else "float32"}
    return release_of(folder, encoder, case.arch, case.size, model_args=case.model_args, **given), encoder
