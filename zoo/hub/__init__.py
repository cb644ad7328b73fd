"""Releases by name, on this machine or on the Hub. What needs torch is imported when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.hub.fetch import load, open
    from zoo.hub.names import ModelRef, named, resolve

__all__ = ["ModelRef", "load", "named", "open", "resolve"]

_HOME_OF = {name: "fetch" if name in ("load", "open") else "names" for name in __all__}
__getattr__ = attributes(__name__, _HOME_OF)
