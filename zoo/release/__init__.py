"""The release folder: what `pretrain` writes, the Hub holds, and `zoo.load`, timm and transformers read."""

from zoo.release.format import Preprocess
from zoo.release.release import Release
from zoo.release.source import load, open
from zoo.release.write import write_release

__all__ = ["Preprocess", "Release", "load", "open", "write_release"]
