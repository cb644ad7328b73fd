"""What goes wrong in a step: losses that are not finite, memory that runs out, signals at any moment."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from tests.test_training import assert_same_state, recipe, run
from zoo.data import Batch
from zoo.errors import Interrupted, TrainingError
from zoo.objectives import Objective, Output
from zoo.training import RunFolder
from zoo.training.signals import interruptible, stop_on_signal
from zoo.training.step import Stepper

R = recipe("classify", "training.clip_grad=1.0")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Objective:
    return run(R, tmp_path_factory.mktemp("undisturbed"))


def out_of_memory(*_: Any) -> Output:
    raise torch.OutOfMemoryError("tried to allocate 20 GiB\nsecond line")


def worker_killed(*_: Any) -> Output:
    raise RuntimeError("DataLoader worker (pid 9) is killed by signal: Killed. ")  # wherever a step is


def spoil(objective: Objective, what: str) -> RemovableHandle:
    """Let the loss or a gradient not be finite, or memory run out, until the hook is removed."""
    if what == "memory":
        return objective.register_forward_pre_hook(out_of_memory)
    if what == "worker":
        return objective.register_forward_pre_hook(worker_killed)
    if what == "gradient":
        return objective.encoder.layer1[0].conv1.weight.register_hook(lambda gradient: gradient * math.inf)
    return objective.register_forward_hook(lambda _, __, output: output._replace(loss=output.loss * math.nan))


@pytest.mark.parametrize(
    ("what", "step", "found", "kept"),
    [
        ("loss", 1, r"the loss became nan by step 1 at lr [\d.]+", 0),
        ("loss", 12, r"the loss became nan by step 12 at lr [\d.]+", 6),
        ("gradient", 5, r"the loss became nan by step 6 at lr [\d.]+", 0),  # which the next loss shows
        ("gradient", 12, "a weight became nan by step 12", 6),  # there is none
        ("memory", 8, r"out of memory in step 8 \(.*20 GiB\)", 6),
        ("worker", 8, r"out of memory in step 8 \(DataLoader worker \(pid 9\).*\)", 6),
    ],
)
def test_what_cannot_go_on_ends_with_the_last_good_state_which_can(
    what: str,
    step: int,
    found: str,
    kept: int,
    undisturbed: Objective,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Stepper.__call__

    def call(self: Stepper, number: int, batch: Batch) -> Output:
        if number != step - 1:
            return real(self, number, batch)
        hook = spoil(self.objective, what)
        try:
            return real(self, number, batch)
        finally:
            hook.remove()

    monkeypatch.setattr(Stepper, "__call__", call)
    with pytest.raises(TrainingError, match=rf"^{found}; the state after step {kept} is saved"):
        run(R, tmp_path)
    monkeypatch.undo()
    folder = RunFolder(tmp_path)
    assert all(math.isfinite(row["loss"]) for row in folder.rows())
    assert folder.load().step == kept
    assert_same_state(undisturbed, run(R, tmp_path, resume=True))  # as if it had been the machine


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_what_is_no_loop_and_says_what_is_saved(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    began = time.monotonic()
    with (
        pytest.raises(Interrupted, match=rf"^stopped by {number.name}; all is well\. .*--resume") as caught,
        interruptible(lambda: "all is well"),
    ):
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()  # after the handlers are there
        try:
            time.sleep(30)
        except Exception:  # what libraries do
            pytest.fail("swallowed")
    assert time.monotonic() - began < 10
    assert caught.value.exit_code == 75
    assert before == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]


def child_ends_by(number: signal.Signals, work: Callable[[], None]) -> int:
    """Fork a child inside the loop's handlers, as loaders do; return how it ends when sent a signal."""
    with stop_on_signal() as caught:
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        time.sleep(0.1)
        os.kill(pid, number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert not caught
    return code


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside threads; the child only sleeps
def test_a_loaders_process_outlives_a_ctrl_c_but_not_its_parents_sigterm() -> None:
    assert child_ends_by(signal.SIGINT, lambda: time.sleep(0.5)) == 0
    assert child_ends_by(signal.SIGTERM, lambda: time.sleep(30)) == -signal.SIGTERM


def test_a_closed_terminal_changes_nothing_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as caught:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not caught
    finally:
        signal.signal(signal.SIGHUP, before)
