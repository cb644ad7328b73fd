"""Releases by name, wherever they lie, and the Hub: open, load, list; `zoo.hub.push` and `zoo.hub.pull`.

Names are fetched when they are used: to read a name, or to list what the Hub has, no torch is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.hub.fetch import load, named, open, portable
    from zoo.hub.names import HubRelease, ModelRef, list_hub, resolve

__all__ = ["HubRelease", "ModelRef", "list_hub", "load", "named", "open", "portable", "resolve"]

__getattr__ = attributes(
    __name__,
    {
        **dict.fromkeys(("load", "named", "open", "portable"), "fetch"),
        **dict.fromkeys(("HubRelease", "ModelRef", "list_hub", "resolve"), "names"),
    },
)
