"""Releases by name, wherever they lie, and the Hub: open, load, list; `zoo.hub.push` and `zoo.hub.pull`.

Names are fetched when they are used: to read a name, or to list what the Hub has, no torch is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.hub.browse import HubRelease, list_hub
    from zoo.hub.names import ModelRef, resolve
    from zoo.hub.source import load, named, open, portable

__all__ = [
    "HubRelease",
    "ModelRef",
    "list_hub",
    "load",
    "named",
    "open",
    "portable",
    "resolve",
]

_HOME_OF = {
    "HubRelease": "browse",
    "ModelRef": "names",
    "list_hub": "browse",
    "load": "source",
    "named": "source",
    "open": "source",
    "portable": "source",
    "resolve": "names",
}


__getattr__ = attributes(__name__, _HOME_OF)
