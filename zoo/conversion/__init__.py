"""Checkpoints of other projects: read without running their code, understood key by key, made a release.

The room is not called `convert`: importing a package of that name would hide the function `zoo.convert`.
"""

from zoo.conversion.convert import convert
from zoo.conversion.families import FAMILIES

__all__ = ["FAMILIES", "convert"]
