"""The release folder: what `pretrain` writes, the Hub holds, and `zoo.load`, timm and transformers read.

Names are fetched when they are used: to read a name, or to list what the Hub has, no torch is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.release.format import Preprocess
    from zoo.release.hub.browse import HubRelease, list_hub
    from zoo.release.release import Release
    from zoo.release.source import load, named, open, portable
    from zoo.release.write import write_release

__all__ = [
    "HubRelease",
    "Preprocess",
    "Release",
    "list_hub",
    "load",
    "named",
    "open",
    "portable",
    "write_release",
]

_HOME_OF = {
    "HubRelease": "hub.browse",
    "Preprocess": "format",
    "Release": "release",
    "list_hub": "hub.browse",
    "load": "source",
    "named": "source",
    "open": "source",
    "portable": "source",
    "write_release": "write",
}


__getattr__ = attributes(__name__, _HOME_OF)
