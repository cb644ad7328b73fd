"""What a revision of a repository on the Hub can be called, a release's or a data set's. Imports no torch."""

from __future__ import annotations

import re

COMMIT = re.compile(r"[0-9a-f]{40}")
REVISION = re.compile(r"(?!.*(?:\.\.|//))[A-Za-z0-9_][A-Za-z0-9_./+-]*(?<![./])")
"""A branch, tag or commit."""
