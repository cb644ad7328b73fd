"""What goes wrong in a step: losses that are not finite, memory that runs out, signals at any moment."""

from __future__ import annotations

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

from tests.test_training import StopAfter, assert_same_state, recipe, run
from zoo.data import Batch
from zoo.errors import Interrupted, TrainingError
from zoo.objectives import MoCo, Objective, Output
from zoo.training import RunFolder
from zoo.training.signals import interruptible, stop_on_signal
from zoo.training.step import Stepper

CPU = torch.device("cpu")


def spoil_loss(monkeypatch: pytest.MonkeyPatch, kind: type[Objective], bad: int) -> None:
    """Let the loss be nan in a step (from 1) of six an epoch."""
    real = kind.forward

    def forward(self: Objective, batch: Batch) -> Output:
        output = real(self, batch)
        return output._replace(loss=output.loss * math.nan) if round(6 * self.epoch) + 1 == bad else output

    monkeypatch.setattr(kind, "forward", forward)


# --- losses and gradients


@pytest.mark.parametrize(
    ("kind", "step", "kept"),
    [("moco", 8, 6), ("classify", 12, 6), ("classify", 1, 0)],
)
def test_a_loss_that_is_not_finite_ends_the_run_with_the_last_good_state_which_can_go_on(
    kind: str, step: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = recipe(kind)
    undisturbed = run(r, tmp_path / "a")
    with monkeypatch.context() as patch:
        spoil_loss(patch, type(undisturbed), step)
        told = rf"^the loss became nan by step {step} at .* [\d.]+; the state after step {kept} is saved"
        with pytest.raises(TrainingError, match=told):
            run(r, tmp_path / "b")
    folder = RunFolder(tmp_path / "b")
    assert all(math.isfinite(row["loss"]) for row in folder.rows())
    assert folder.load().step == kept
    assert_same_state(undisturbed, run(r, tmp_path / "b", resume=True))  # as if it had been the machine


@pytest.mark.parametrize("step", [5, 12])  # the next step's loss shows it; the last one's has none
def test_a_gradient_that_is_not_finite_ends_the_run_before_it_is_saved(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = recipe("classify", "training.clip_grad=1.0")
    real = Stepper.__call__

    def call(self: Stepper, number: int, *rest: Any) -> Output:
        weight = self.objective.encoder.layer1[0].conv1.weight
        hook = weight.register_hook(lambda grad: grad * math.inf) if number == step - 1 else None
        try:
            return real(self, number, *rest)
        finally:
            if hook is not None:
                hook.remove()

    monkeypatch.setattr(Stepper, "__call__", call)
    found = {5: "the loss became nan by step 6", 12: "a weight became nan by step 12"}[step]
    with pytest.raises(TrainingError, match=rf"^{found} ?.*; the state after step {step // 7 * 6} is saved"):
        run(r, tmp_path)
    monkeypatch.undo()
    assert_same_state(run(r, tmp_path / "b"), run(r, tmp_path, resume=True))


def test_out_of_memory_is_one_line_and_the_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: Any) -> Output:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB\nsecond line")

    with monkeypatch.context() as patch:
        patch.setattr(MoCo, "forward", forward)
        with pytest.raises(TrainingError, match=r"^out of memory in step 1 .*20 GiB.*after step 0"):
            run(recipe("moco"), tmp_path)
    run(recipe("moco"), tmp_path, resume=True)
    assert RunFolder(tmp_path).load().step == 12


# --- signals


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


def test_a_closed_terminal_saves_within_a_step_and_changes_nothing_under_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as caught:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not caught
    finally:
        signal.signal(signal.SIGHUP, before)
    StopAfter(tmp_path / "b", 2, signal.SIGHUP)
    with pytest.raises(Interrupted, match="stopped by SIGHUP after step"):
        run(recipe("classify"), tmp_path / "b")
    assert_same_state(
        run(recipe("classify"), tmp_path / "a"), run(recipe("classify"), tmp_path / "b", resume=True)
    )
