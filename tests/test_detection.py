"""Encoders of the zoo as backbones of torchvision's detectors; README's example has a segmentation net."""

import pytest
import torch
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

import zoo
from tests.release_helpers import release_of, trained_encoder
from zoo import ZooError
from zoo.modules import FeatureMaps, FeaturePyramid

PACO = "cifar_resnet20.paco_digits_lt50"
SIDE = 32


def test_a_detector_trains_and_detects_with_a_backbone_of_the_zoo() -> None:
    """The README's line for encoders with other maps than a ResNet's four."""
    torch.manual_seed(0)
    encoder, images = zoo.load(PACO, features_only=True), [torch.rand(3, SIDE, SIDE) for _ in range(2)]
    anchors = AnchorGenerator(((4,), (8,), (16,), (32,)), ((0.5, 1.0, 2.0),) * 4)
    pool = MultiScaleRoIAlign(["0", "1", "2"], 4, 2)
    backbone, side = FeaturePyramid(encoder, out_channels=32), {"min_size": SIDE, "max_size": SIDE}
    model = FasterRCNN(backbone, 11, rpn_anchor_generator=anchors, box_roi_pool=pool, **side)
    target = {"boxes": torch.tensor([[4.0, 4.0, 20.0, 20.0]]), "labels": torch.tensor([1])}
    sum(model(images, [target, target]).values()).backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters() if p.ndim == 4)
    with torch.no_grad():
        assert {"boxes", "labels", "scores"} == set(model.eval()(images)[0])


SWIN = {"img_size": 32, "depths": [1, 1, 1, 1], "window_size": 1}


@pytest.mark.parametrize(
    ("arch", "arguments", "strides"),
    [
        ("cifar_resnet20", {}, [1, 2, 4]),
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8}, [8, 8, 8]),
        ("swin_tiny_patch4_window7_224", SWIN, [4, 8, 16, 32]),  # has channels last
    ],
)
def test_maps_of_a_release_are_its_encoders_channels_first(arch, arguments, strides, tmp_path) -> None:
    encoder = trained_encoder(arch, **arguments)
    release = release_of(tmp_path / arch, encoder, arch=arch, size=SIDE, model_args=arguments)
    maps = FeatureMaps(zoo.load(release.path, features_only=True)).eval()
    images = torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        found, last = list(maps(images).values()), encoder.forward_features(images)
    assert [each.shape[1] for each in found] == maps.channels
    assert [each.shape[2:] for each in found] == [(SIDE // stride,) * 2 for stride in strides]
    if arch == "cifar_resnet20":  # other maps are before the last norm
        torch.testing.assert_close(found[-1], last, rtol=1e-4, atol=1e-4)


def test_what_gives_no_feature_maps_and_other_names_are_refused() -> None:
    with pytest.raises(ZooError, match=r"CifarResNet without feature maps.*features_only=True"):
        FeaturePyramid(zoo.load(PACO))
    with pytest.raises(ZooError, match="found 1, expected one for each of 3 maps"):
        FeatureMaps(zoo.load(PACO, features_only=True), ["out"])
