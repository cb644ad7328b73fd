"""A release of any timm architecture reads back as the encoder that was written, by zoo and by plain timm."""

from typing import Any

import pytest
import timm
import torch
from packaging.version import Version

import zoo
from tests.release_helpers import TIMM, plain_timm, release_of, trained_encoder

VIT = {"img_size": 64, "depth": 2}

# With non-persistent buffers, which a model built on the meta device lacks, and with something else of their
# own (tokens, a head that is no single layer, a fixed input size); as small as they get.
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("beit_base_patch16_224", 64, {**VIT, "embed_dim": 96, "num_heads": 4}),
    ("lambda_resnet26rpt_256", 128, {"img_size": 128}),
    ("vit_tiny_patch16_dinov3_qkvb", 64, VIT),
    ("levit_128s", 224, {}),
    ("test_coatnet", 160, {}),
    ("swin_tiny_patch4_window7_224", 64, {"img_size": 64, "embed_dim": 24}),
    ("swinv2_tiny_window16_256", 64, {"img_size": 64, "embed_dim": 24}),
    ("tiny_vit_5m_224", 64, {"depths": (1, 1, 2, 1)}),
    ("test_vit_relpos", 160, {}),
    ("cifar_resnet20", 32, {}),
    ("coat_lite_tiny", 64, {"img_size": 64}),
    ("convnext_atto", 32, {"patch_size": 2}),
    ("deit_tiny_distilled_patch16_224", 32, {"img_size": 32, "patch_size": 8, "depth": 2}),
    ("resnet18_cifar", 32, {}),
    ("resnet18", 32, {"output_stride": 8}),
    ("vit_tiny_patch16_224", 32, {"dynamic_img_size": True, "patch_size": 8, "depth": 2}),
]


@pytest.mark.parametrize(("arch", "size", "model_args"), CASES)
def test_features_are_those_of_the_encoder_and_of_plain_timm(arch, size, model_args, tmp_path):
    if not timm.is_model(arch):
        pytest.skip(f"timm {timm.__version__} has no {arch}")
    encoder = trained_encoder(arch, **model_args)  # nothing is as a fresh model of the same seed has it
    release_of(tmp_path / "release", encoder, arch, size, model_args=model_args)

    torch.manual_seed(1)
    loaded = zoo.load(tmp_path / "release").eval()
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        features = encoder(images)
        assert features.std() > 0
        # the same weights; some processors sum in another order where a tensor lies elsewhere in memory
        torch.testing.assert_close(loaded(images), features, rtol=1e-4, atol=1e-5)
    assert not any(tensor.is_meta for tensor in [*loaded.parameters(), *loaded.buffers()])
    if not (arch.startswith("swin") and Version("1.0.31") > TIMM):
        # Those take weights without a classifier for an old format's, in timm before 1.0.31.
        plain = plain_timm(tmp_path / "release", num_classes=0)
        with torch.no_grad():
            torch.testing.assert_close(plain(images), features, rtol=1e-4, atol=1e-5)
    parameters = dict(loaded.named_parameters())
    assert all(torch.equal(parameters[name], each) for name, each in encoder.named_parameters())
    buffers = dict(loaded.named_buffers())
    assert all(torch.equal(buffers[name], buffer) for name, buffer in encoder.named_buffers())
