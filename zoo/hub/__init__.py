"""Releases by name, on this machine or on the Hub: `open`, `load`, `list_hub`, `zoo.hub.push`, `zoo.hub.pull`.

Names are fetched when they are used: to resolve a name, or to list what the Hub has, no torch is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.hub.fetch import load, open
    from zoo.hub.names import HubRelease, ModelRef, list_hub, named, resolve

__all__ = ["HubRelease", "ModelRef", "list_hub", "load", "named", "open", "resolve"]

_HOME_OF = {name: "fetch" if name in ("load", "open") else "names" for name in __all__}
__getattr__ = attributes(__name__, _HOME_OF)
