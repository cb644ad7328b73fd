"""The release folder: what `pretrain` writes, the Hub holds, and `zoo.load`, timm and transformers read."""

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.release.format import Preprocess
    from zoo.release.release import Release
    from zoo.release.write import write_release

__all__ = ["Preprocess", "Release", "write_release"]

__getattr__ = attributes(__name__, {"Preprocess": "format", "Release": "release", "write_release": "write"})
