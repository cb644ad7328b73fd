"""Names of a package that are fetched at their first use: importing it costs nothing of what is below."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def attributes(package: str, home_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: its name, `__name__` there.
        home_of: by name the module below it that has it, e.g. `"hub.fetch"`; `".functional.knn"` lies beside
            the package.
    """

    def fetch(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{home_of[name]}", package), name)
        setattr(sys.modules[package], name, value)  # the next use costs nothing
        return value

    return fetch
