"""Several processes as torchrun starts them, on this machine."""

from __future__ import annotations

import re

import pytest

from tests.torchrun import torchrun


@pytest.mark.parametrize("size", [2, 3])
def test_collectives_give_every_rank_the_rows_in_order_also_of_unequal_shares(size: int) -> None:
    done = torchrun("tests/programs/collectives.py", ranks=size)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"rank \d of \d: ok", done.stdout)
    assert sorted(found) == [f"rank {rank} of {size}: ok" for rank in range(size)]
