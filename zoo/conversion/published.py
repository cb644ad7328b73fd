"""Checkpoints that authors publish under a plain address, by the name of their weights; all of ImageNet-1k.

`zoo convert NAME` fetches one and makes a release of it. Imports nothing heavy.
"""

from __future__ import annotations

from typing import NamedTuple

_FAIR = "https://dl.fbaipublicfiles.com"


class Published(NamedTuple):
    """A checkpoint on its authors' server.

    Attributes:
        url: where it lies, as the authors' repository says.
        family: whose layout it has, a key of `zoo.conversion.FAMILIES`.
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
