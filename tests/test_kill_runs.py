"""The campaign of tests/kill_runs.py: a short one always, the long one on request (-m slow)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def campaign(count: int, seed: int) -> dict[str, int]:
    """Run it; return its counts by name."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kill_runs", "--count", str(count), "--seed", str(seed)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name.strip(): int(number) for name, number in re.findall(r"^(.+): (\d+)$", done.stdout, re.M)}


def test_runs_killed_at_random_moments_end_in_the_same_bits() -> None:
    counts = campaign(3, seed=3)
    assert counts["tried"] == sum(n for name, n in counts.items() if name.startswith("identical")) == 3
    assert counts["kills"] >= 1  # by the clock of an undisturbed run: on a busy machine some come too late
    assert counts["failed"] == 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_runs_killed_also_while_checkpoints_are_written_end_in_the_same_bits() -> None:
    counts = campaign(100, seed=0)
    assert counts["tried"] == sum(n for name, n in counts.items() if name.startswith("identical")) == 100
    for somewhere in (
        "in a step",
        "in checkpoint writing",
        "before the first checkpoint",
        "in release writing",
    ):
        assert counts.get(f"killed {somewhere}", 0) > 0
    assert counts["ended by a full disk with one clear line"] > 0
