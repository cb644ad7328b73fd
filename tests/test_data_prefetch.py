"""Batches made ahead: order, lifetime, errors in their turn, and a stream that is waited for."""

import gc
import threading
import time

import pytest
import torch

from zoo.data.batch import Batch
from zoo.data.prefetch import DEPTH, background, one_ahead


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("zoo-prefetch")]


def ended():
    deadline = time.monotonic() + 5
    while prefetch_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not prefetch_threads()


def numbers(count, made=None, error_at=None, error=None):
    for number in range(count):
        if number == error_at:
            raise error
        if made is not None:
            made.append(number)
        yield number


def test_a_thread_keeps_order_and_makes_no_more_than_its_depth_ahead():
    made = []
    items = background(numbers(20, made))
    for number in range(20):
        assert next(items) == number
        time.sleep(0.005)
        assert len(made) <= number + 1 + DEPTH
    assert next(items, "end") == "end"
    assert made == list(range(20))
    assert ended()


def test_a_thread_works_while_the_caller_does():
    made = []
    items = background(numbers(9, made))
    next(items)
    deadline = time.monotonic() + 5
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(made) == 3
    items.close()


@pytest.mark.parametrize("how", ["close", "drop", "error"])
def test_a_thread_ends_with_its_iterator(how):
    items = background(numbers(10**9))
    next(items)
    assert prefetch_threads()
    if how == "close":
        items.close()
    elif how == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in items:
                _ = 1 / 0
    del items
    gc.collect()
    assert ended()


def test_the_error_of_a_thread_comes_in_its_turn_and_is_the_same_object():
    error = ValueError("third")
    items = background(numbers(9, error_at=2, error=error))
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="third") as caught:
        next(items)
    assert caught.value is error
    assert next(items, "end") == "end"
    assert ended()


class Recorded:
    """A lane that writes down what happens when."""

    def __init__(self):
        self.log = []

    def make(self, produce):
        batch = produce()
        number = int(batch.index)
        self.log.append(f"make {number}")

        def hand_over():
            self.log.append(f"hand over {number}")
            return batch

        return hand_over


def batches(count, log, error_at=None):
    try:
        for number in range(count):
            if number == error_at:
                raise ValueError("bad batch")
            yield Batch((torch.full((1,), float(number)),), torch.zeros(1), torch.tensor(number))
    finally:
        log.append("closed")


def test_a_batch_is_queued_before_the_one_in_front_of_it_is_handed_over():
    lane = Recorded()
    for batch in one_ahead(batches(3, lane.log), lane):
        lane.log.append(f"step {int(batch.index)}")
    assert lane.log == [
        "make 0", "make 1", "hand over 0", "step 0", "make 2", "hand over 1", "step 1", "closed",
        "hand over 2", "step 2",
    ]  # fmt: skip


@pytest.mark.parametrize("error_at", [0, 1, 3])
def test_batches_before_an_error_come_first(error_at):
    lane = Recorded()
    ahead = one_ahead(batches(9, lane.log, error_at), lane)
    assert [int(next(ahead).index) for _ in range(error_at)] == list(range(error_at))
    with pytest.raises(ValueError, match="bad batch"):
        next(ahead)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_abandoning_closes_what_makes_the_batches(how):
    lane = Recorded()
    ahead = one_ahead(batches(9, lane.log), lane)
    next(ahead)
    assert "closed" not in lane.log
    if how == "close":
        ahead.close()
    del ahead
    gc.collect()
    assert lane.log[-1] == "closed"


def test_an_interrupt_is_not_put_off():
    def interrupted():
        yield Batch((), torch.zeros(1), torch.tensor(0))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(one_ahead(interrupted(), Recorded()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_batches_are_those_made_in_line(tmp_path):
    from tests.data_fixtures import list_dataset, photo
    from tests.test_data_loader import MOCO, make, same

    data = list_dataset(tmp_path, [photo(32, 32, seed) for seed in range(24)])
    for backend in ("tensor", "stream"):
        feed = make(data, backend, views=[MOCO, MOCO], device="cuda")
        inline = list(feed._feed.stream(feed._order.positions(0, 9, feed._feed.index_device)))
        torch.cuda.synchronize()
        for expected, found in zip(inline, feed.stream(0, 9), strict=True):
            assert same(expected, found)
            torch.empty(1 << 24, device="cuda").fill_(7)  # reuses memory that was freed too early
