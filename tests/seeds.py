"""Trainings of several seeds where one of them decides."""

from collections.abc import Callable

import pytest

SEEDS = (0, 1, 2)


def assert_one_gains(gain: Callable[[int], float], more_than: float) -> None:
    """Make sure that `gain(seed)` is enough for one of three seeds; what learns nothing gains with none.

    Another processor rounds otherwise, which is as much as another seed. A seed is trained only where those
    before it did not do.
    """
    found: list[float] = []
    for seed in SEEDS:
        found.append(gain(seed))
        if found[-1] > more_than:
            return
    pytest.fail(f"gains of {len(SEEDS)} seeds: {found}, expected one above {more_than}")
