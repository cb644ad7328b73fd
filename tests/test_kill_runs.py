"""The campaign of tests/kill_runs.py: a short one always, the long one on request (-m slow)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_runs_killed_at_random_moments_end_in_the_same_bits(count: int) -> None:
    command = [sys.executable, "-m", "tests.kill_runs", "--count", str(count), "--seed", "3"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = int(re.findall(r"killed (\d+) times", done.stdout)[0])
    assert kills >= count // 3  # by the clock of an undisturbed run: on a busy machine some come too late
