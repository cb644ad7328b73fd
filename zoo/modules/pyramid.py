"""Adapters of an encoder's feature maps to torchvision's detection and segmentation models."""

from collections import OrderedDict
from collections.abc import Sequence

from timm.models import FeatureInfo
from torch import Tensor, nn
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

from zoo.errors import ZooError


class FeatureMaps(nn.Module):
    """Names an encoder's feature maps: images `[B, 3, H, W]` to an ordered dict of `[B, C_i, H_i, W_i]`.

    torchvision's `FCN` and `DeepLabV3` use it as backbone, with one map named `out`. `channels` are the C_i.

    Args:
        encoder: from `zoo.load(name, features_only=True, out_indices=...)`, or timm's equivalent.
        names: one for each map; by default "0", "1", ..., from the finest. ZooError for another number of
            names, or another kind of model.
    """

    def __init__(self, encoder: nn.Module, names: Sequence[str] | None = None) -> None:
        super().__init__()
        info = getattr(encoder, "feature_info", None)
        if not isinstance(info, FeatureInfo):  # a whole timm model has a list there
            found = f"encoder: found a {type(encoder).__name__} without feature maps"
            raise ZooError(f"{found}, expected one of zoo.load(name, features_only=True)")
        self.encoder, self.channels = encoder, list[int](info.channels())
        self.names = [str(i) for i in range(len(self.channels))] if names is None else list(names)
        if len(self.names) != len(self.channels):
            raise ZooError(
                f"names: found {len(self.names)}, expected one for each of {len(self.channels)} maps"
            )
        self._channels_last = "NHWC" in str(getattr(encoder, "output_fmt", ""))

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        maps = self.encoder(images)
        if self._channels_last:
            maps = [each.permute(0, 3, 1, 2) for each in maps]
        return OrderedDict(zip(self.names, maps, strict=True))


class FeaturePyramid(nn.Module):
    """A feature pyramid over any timm encoder: a backbone for torchvision's detectors.

    Lateral and top-down convolutions (Lin et al. 2017, https://arxiv.org/abs/1612.03144) to `out_channels`,
    and one coarser map named `pool`. torchvision's own `BackboneWithFPN` accepts only ResNets.
    """

    def __init__(self, encoder: nn.Module, out_channels: int = 256) -> None:
        super().__init__()
        self.maps = FeatureMaps(encoder)
        self.fpn = FeaturePyramidNetwork(self.maps.channels, out_channels, extra_blocks=LastLevelMaxPool())
        self.out_channels = out_channels

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        return self.fpn(self.maps(images))  # type: ignore[no-any-return]
