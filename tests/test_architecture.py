"""The house keeps to its directions (import-linter's contracts in pyproject.toml) and to its size."""

import subprocess
import sys

from tests.size import ROOT, sizes


def test_imports_keep_to_the_directions_of_the_architecture():
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
        "--no-cache",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_no_room_is_larger_than_its_limit() -> None:
    assert [(name, found, limit) for name, found, limit in sizes() if found > limit] == []
