"""What goes wrong in a step: losses that are not finite, memory that runs out, signals at any moment."""

from __future__ import annotations

import errno
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from zoo.training.memory import is_out_of_memory
from zoo.training.nonfinite import MOST_REPEATS

from tests.test_training import assert_same_state, recipe, run
from zoo.data import Batch, open_dataset
from zoo.errors import Interrupted, TrainingError
from zoo.objectives import Objective, Output
from zoo.training import Recipe, RunFolder, build_objective
from zoo.training.prepare import open_loader, place
from zoo.training.signals import interruptible, stop_on_signal
from zoo.training.step import Stepper

CPU = torch.device("cpu")
BACK = "back to step"


def spoil_loss(monkeypatch: pytest.MonkeyPatch, r: Recipe, steps: set[int], times: int = 10**9) -> list[int]:
    """Let the loss be nan in some steps (from 1), `times` times in all; return the steps computed."""
    seen: list[int] = []
    dataset = open_dataset(r.data, "train", None)
    kind, per_epoch = type(build_objective(r, dataset)), open_loader(dataset, r, CPU).steps_per_epoch
    real = kind.forward

    def forward(self: Objective, batch: Batch) -> Output:
        output = real(self, batch)
        step = round(self.epoch * per_epoch) + 1
        seen.append(step)
        bad = step in steps and sum(each in steps for each in seen) <= times
        return output._replace(loss=output.loss * math.nan) if bad else output

    monkeypatch.setattr(kind, "forward", forward)
    return seen


def without(r: Recipe, *left_out: int) -> Objective:
    """Return the objective after the plain steps of a run with some (from 1) left out."""
    dataset = open_dataset(r.data, "train", None)
    objective = build_objective(r, dataset)
    place(objective, r, CPU)
    loader = open_loader(dataset, r, CPU)
    stepper = Stepper(objective, r, loader.steps_per_epoch, CPU)
    with torch.random.fork_rng(devices=[]):
        for step, batch in enumerate(loader.stream(0, stepper.steps)):
            if step + 1 not in left_out:
                stepper(step, batch)
    return objective


# --- losses and gradients


@pytest.mark.parametrize("kind", ["moco", "pico"])  # a queue with pointer, a teacher; confidences, prototypes
def test_a_skipped_step_leaves_the_same_bits_as_a_run_that_never_had_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_size = {"moco": 64, "pico": 208}[kind]  # six steps an epoch
    changes = ("training.skip_bad_steps=1", "training.log_every=4", f"training.batch_size={batch_size}")
    r = recipe(kind, *changes)
    expected = without(r, 7)
    seen = spoil_loss(monkeypatch, r, {7})
    with pytest.warns(UserWarning) as caught:
        found = run(r, tmp_path)
    assert_same_state(expected, found)
    said = [str(warning.message) for warning in caught]
    assert "the loss became nan by step 9: back to step 6 to see where it began" in said
    assert "the loss became nan in step 7: left out, as 1 of at most 1 bad steps" in said
    assert seen == [*range(1, 10), *range(7, 13)]  # fast past it, from the checkpoint to it, fast again
    folder = RunFolder(tmp_path)
    rows = [(row["step"], row.get("skipped")) for row in folder.rows()]
    assert rows == [
        (4, None),
        (6, None),
        (8, 1),
        (12, 1),
    ]
    assert folder.load().skipped == (7,)
    assert [int(file.stem[5:]) for file in folder.checkpoints()] == [12, 7]


def test_what_is_set_already_is_not_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r = recipe("classify", "training.clip_grad=2.5")
    spoil_loss(monkeypatch, r, {2})
    with (
        pytest.warns(UserWarning, match=BACK),
        pytest.raises(TrainingError, match=r"lower \(it is 2\.5\) training\.clip_grad .*skip_bad_steps=1$"),
    ):
        run(r, tmp_path)


def test_a_second_bad_step_beyond_the_limit_ends_the_run_in_the_state_before_it_and_more_can_be_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = recipe("classify", "training.skip_bad_steps=1")
    expected = without(r, 3, 9)
    spoil_loss(monkeypatch, r, {3, 9})
    with (
        pytest.warns(UserWarning, match=BACK),
        pytest.raises(
            TrainingError,
            match=r"^the loss became nan in step 9 of 12 at learning rate 0\.[\d]+; 1 bad step\(s\) are "
            r'skipped already; the state after step 8 is saved in ".*"\. Lower optimizer\.lr.*'
            r"training\.skip_bad_steps=2",
        ),
    ):
        run(r, tmp_path)
    kept = RunFolder(tmp_path).load()
    assert (kept.step, kept.skipped) == (8, (3,))
    assert all(value.isfinite().all() for value in kept.state["objective"].values())
    with pytest.warns(UserWarning, match=BACK), pytest.raises(TrainingError, match=r"nan in step 9 of 12"):
        run(r, tmp_path, resume=True)
    with pytest.warns(UserWarning, match=r"skip_bad_steps was 1, is 2"):
        found = run(recipe("classify", "training.skip_bad_steps=2"), tmp_path, resume=True)
    assert_same_state(expected, found)
    assert RunFolder(tmp_path).load().skipped == (3, 9)


def test_a_gradient_that_is_not_finite_is_named_before_clipping_spreads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = recipe("classify", "training.clip_grad=1.0", "training.checkpoint_every=2")
    real = Stepper.__call__

    def call(self: Stepper, step: int, *rest: Any) -> Output:
        weight = self.objective.encoder.layer1[0].conv1.weight
        hook = weight.register_hook(lambda grad: grad * math.inf) if step == 4 else None
        try:
            return real(self, step, *rest)
        finally:
            if hook is not None:
                hook.remove()

    monkeypatch.setattr(Stepper, "__call__", call)
    with (
        pytest.warns(UserWarning, match=r"the loss became nan by step [67]: back to step 0"),
        pytest.raises(
            TrainingError,
            match=r"^the gradient of encoder\.layer1\.0\.conv1\.weight became (inf|nan) in step 5 of 12 at",
        ),
    ):
        run(r, tmp_path)
    kept = RunFolder(tmp_path).load()
    assert kept.step == 4
    monkeypatch.undo()
    assert_same_state(run(r, tmp_path / "b"), run(r, tmp_path, resume=True))  # BatchNorm's statistics, too


LOST = (
    r"^training\.precision: fp16 has left out so many updates up to step 12, .*; the state after step 0 is "
    r"saved in .* Give the same command with --resume and --set training\.precision=bf16 or fp32$"
)


@pytest.mark.parametrize("spoilt", [True, False])
def test_updates_that_a_loss_scaler_always_leaves_out_end_the_run(
    spoilt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under float16 the loss may stay finite, and no gradient ever be."""
    real, scaler = Stepper.__call__, torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, **_: scaler(device, init_scale=2.0**-12))

    def call(self: Stepper, *rest: Any) -> Output:
        hook = self.objective.encoder.conv1.weight.register_hook(lambda grad: grad * math.inf)
        try:
            return real(self, *rest)
        finally:
            hook.remove()

    if spoilt:
        monkeypatch.setattr(Stepper, "__call__", call)
    with pytest.raises(TrainingError, match=LOST) if spoilt else nullcontext():
        run(recipe("classify", "training.checkpoint_every=2"), tmp_path)
    assert RunFolder(tmp_path).load().step == (0 if spoilt else 12)  # of those nothing is saved


def test_trouble_that_does_not_come_back_leaves_no_trace_and_one_that_always_comes_back_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = recipe("moco")
    undisturbed = run(r, tmp_path / "a")
    rows = RunFolder(tmp_path / "a").rows()
    with monkeypatch.context() as patch:
        spoil_loss(patch, r, {9}, times=1)
        with pytest.warns(UserWarning, match=r"nan by step 10: back to step 6"):
            assert_same_state(undisturbed, run(r, tmp_path / "b"))
    found = RunFolder(tmp_path / "b").rows()
    assert [(row["step"], row["loss"]) for row in found] == [(row["step"], row["loss"]) for row in rows]
    assert RunFolder(tmp_path / "b").load().skipped == ()

    real, fast = Stepper.__call__, []

    def flickers(self: Stepper, step: int, *rest: Any) -> Output:
        output = real(self, step, *rest)
        if self.watch is None:
            fast.append(step)
            output = output._replace(loss=output.loss * math.nan)
        return output

    monkeypatch.setattr(Stepper, "__call__", flickers)
    long = recipe("classify", "training.epochs=9")
    with (
        pytest.warns(UserWarning, match=BACK),
        pytest.raises(
            TrainingError, match=rf"{MOST_REPEATS} times, .* this machine computes unreliably; the state"
        ),
    ):
        run(long, tmp_path / "c")
    assert len(fast) <= 3 * (MOST_REPEATS + 1)


def test_a_stop_while_there_is_trouble_does_not_save_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = recipe("classify")
    expected = run(r, tmp_path / "a")
    seen = spoil_loss(monkeypatch, r, {8}, times=1)
    real = Stepper.__call__

    def call(self: Stepper, step: int, *rest: Any) -> Output:
        output = real(self, step, *rest)
        if len(seen) == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return output

    monkeypatch.setattr(Stepper, "__call__", call)
    with pytest.raises(
        Interrupted, match=r"stopped by SIGTERM after step 8 of 12; the state after step 6 is"
    ):
        run(r, tmp_path / "b")
    assert_same_state(expected, run(r, tmp_path / "b", resume=True))


# --- memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you ..."
        ),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_every_allocators_error_is_known_for_what_it_is(error: BaseException) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def greedy(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let the encoder ask for far more than there is when it is given more than `most` images."""
    real = nn.Conv2d.forward

    def forward(self: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
        if self.in_channels == 3 and len(x) > most and torch.is_grad_enabled():
            torch.empty(1 << 50)  # as the allocator sees it
        return real(self, x)

    monkeypatch.setattr(nn.Conv2d, "forward", forward)


def test_out_of_memory_names_sizes_and_knobs_and_one_of_them_lets_the_run_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy(monkeypatch, 32)
    with pytest.raises(
        TrainingError,
        match=r"^out of memory in step 1 of 12: 64 images x 2 view\(s\) of 8 px; trained parameters "
        r"[\d.]+ MB and as much for their gradients, optimizer 0 B, teacher, queue and buffers [\d.]+ MB "
        r"\(.*can't allocate memory.*\)\. Give the same command with --resume and --set "
        r"training\.accumulate=2 or training\.checkpoint_activations=true or training\.precision=bf16; "
        r"the state after step 0 is saved",
    ):
        run(recipe("moco", "objective.key_groups=1"), tmp_path)
    with pytest.warns(UserWarning, match=r"accumulate was 1, is 2"):
        run(recipe("moco", "objective.key_groups=1", "training.accumulate=2"), tmp_path, resume=True)
    assert RunFolder(tmp_path).load().step == 12


def test_knobs_in_use_are_not_advised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy(monkeypatch, 1)
    used = ("training.batch_size=6", "training.accumulate=3", "training.precision=bf16")
    with pytest.raises(TrainingError) as caught:
        run(recipe("classify", *used, "training.checkpoint_activations=true"), tmp_path)
    assert "training.accumulate" not in str(caught.value)
    assert "smaller training.batch_size or image size" in str(caught.value)


# --- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_what_is_no_loop_and_says_what_is_saved(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    began = time.monotonic()
    with (
        pytest.raises(
            Interrupted, match=rf"^stopped by {number.name}; all is well\. Give .*--resume"
        ) as caught,
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


def test_inside_what_can_be_interrupted_the_loop_still_stops_between_steps() -> None:
    with interruptible(lambda: "outside"):
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)
            assert stop.signal == "SIGUSR1"
        with pytest.raises(KeyboardInterrupt):  # and afterwards the outer one has the word again
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)


def test_under_torchrun_a_signal_that_comes_twice_changes_nothing() -> None:
    with stop_on_signal(once=False) as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        assert stop.signal == "SIGINT"


def child_ends_by(number: signal.Signals, work: Callable[[], None]) -> int:
    """Fork a child inside the loop's handlers, as loaders do; return how it ends when sent a signal."""
    with stop_on_signal() as stop:
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        time.sleep(0.1)
        os.kill(pid, number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert stop.signal is None
    return code


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside threads; the child only sleeps
def test_a_loaders_process_outlives_a_ctrl_c_but_not_its_parents_sigterm() -> None:
    assert child_ends_by(signal.SIGINT, lambda: time.sleep(0.5)) == 0
    assert child_ends_by(signal.SIGTERM, lambda: time.sleep(30)) == -signal.SIGTERM


def test_usr1_stops_a_run_as_sigterm_does(tmp_path: Path) -> None:
    from tests.test_training import StopAfter

    StopAfter(tmp_path / "b", 2, signal.SIGUSR1)
    with pytest.raises(Interrupted, match="stopped by SIGUSR1 after step"):
        run(recipe("classify"), tmp_path / "b")
    assert_same_state(
        run(recipe("classify"), tmp_path / "a"), run(recipe("classify"), tmp_path / "b", resume=True)
    )
