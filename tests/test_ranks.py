"""Several processes with the environment that torchrun gives them, on this machine."""

from __future__ import annotations

import re

import pytest

from tests.warm import run_ranks


@pytest.mark.parametrize("size", [2, 3])
def test_collectives_give_every_rank_the_rows_in_order_also_of_unequal_shares(size: int) -> None:
    done = run_ranks("tests/programs/collectives.py", ranks=size)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"rank \d of \d: ok", done.stdout)
    assert sorted(found) == [f"rank {rank} of {size}: ok" for rank in range(size)]


def test_what_one_rank_does_while_the_others_wait_may_take_longer_than_a_step() -> None:
    done = run_ranks("tests/programs/late.py", ranks=2, ZOO_RANK_TIMEOUT="6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("still here") == 2


def test_ranks_meet_again_when_the_first_of_them_still_has_the_store_of_the_meeting_before() -> None:
    """As between the trainings of a comparison, where no agent of torchrun's has the store."""
    done = run_ranks("tests/programs/again.py", ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("met again") == 2


def test_the_steps_of_several_ranks_are_those_of_one_with_the_whole_batch() -> None:
    """In float64: weights, queue, labels, pointer, optimizer."""
    done = run_ranks("tests/programs/steps.py", ranks=2)
    assert done.returncode == 0, done.stderr
    line = r"^(.+): loss (\S+) observed (\S+) state (\S+) \((.+?)\) same (\w+)$"
    found = re.findall(line, done.stdout, re.MULTILINE)
    assert len(found) == 11
    for case, loss, observed, state, worst, same in found:
        limit = 1e-6 if "classify" in case else 1e-9  # its logits are float32
        assert float(loss) < limit, (case, loss)
        assert float(observed) < 2e-5, (case, observed)  # in float32, and in six digits
        assert float(state) < 1e-9, (case, worst, state)
        assert same == "True", case
