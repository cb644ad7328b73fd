"""Whole trainings under torchrun: the same result on any number of ranks, and after every kind of end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from tests.programs.tiny import VIT
from tests.torchrun import LAUNCH, ROOT, command, environment, torchrun
from tests.warm import Program, free_port, run_ranks, start_ranks
from zoo.api import pretraining
from zoo.launch import neighbours
from zoo.ranks import ALONE
from zoo.recipe import Recipe
from zoo.training import RunFolder

RECIPE = "cifar_resnet20.moco_v2_ft_digits_lt50"
SHORT = (
    "training.epochs=4",
    "schedule.warmup_epochs=1",
    "training.batch_size=64",  # 6 steps an epoch, the last of 24 images
    "training.log_every=1",
    "training.checkpoint_every=1",
    "training.device=cpu",
    *VIT,
    "objective.head_batchnorm=false",
    "training.channels_last=false",  # its kernels round otherwise than those for a rank's smaller batch
    "objective.queue_size=100",
    "objective.key_groups=1",
    "objective.tau=0.5",
    "objective.feature_transform.start_epoch=0",
    "optimizer.lr=0.002",  # with more, 24 steps make much of a rounding
    "evaluation=[]",
)
STEPS = 24
MESSAGE = (
    r"zoo, rank \d: rank \d of \d lost the others: .* The last checkpoint is kept: the same command with"
)


def pretrain(out: Path, *more: str, overrides: tuple[str, ...] = SHORT) -> list[str]:
    changes = [text for change in overrides for text in ("--set", change)]
    return ["tests/programs/plain_sweep.py", "pretrain", RECIPE, "--out", str(out), *changes, *more]


def losses(out: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in RunFolder(out / "run").rows()]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def assert_same_bits(a: Path, b: Path) -> None:
    assert losses(a) == losses(b)
    one, other = weights(a), weights(b)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def assert_close(a: Path, b: Path) -> None:
    """To what another order of every sum leaves after 24 steps in float32."""
    one, other = dict(losses(a)), dict(losses(b))
    assert [*one] == [*other] == list(range(1, STEPS + 1))
    first, then = slice(0, 6), slice(6, None)  # what the first steps round apart, the later ones multiply
    assert [*one.values()][first] == pytest.approx([*other.values()][first], rel=1e-4)
    assert [*one.values()][then] == pytest.approx([*other.values()][then], rel=5e-3)
    these, those = weights(a), weights(b)
    for name, value in these.items():
        scale = value.abs().max().clamp(min=5e-3)
        assert ((value - those[name]).abs().max() / scale) < 0.15, name


def workers(agent: int) -> list[int]:
    """Return the processes that a torchrun has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == agent:
                found.append(int(entry.name))
    return sorted(found)


def once_at(out: Path, rows: int, process: subprocess.Popen[str] | Program) -> None:
    """Wait until a run has written so many rows."""
    file = out / "run" / "metrics.jsonl"
    for _ in range(300_000):
        if file.is_file() and len(file.read_text().splitlines()) >= rows:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)
    raise AssertionError("the run does not get there")


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release of two ranks that nothing happened to."""
    out = tmp_path_factory.mktemp("ranks") / "two"
    done = torchrun("-m", "zoo", *pretrain(out)[1:], ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("load it:") == 1  # one rank speaks
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr, done.stderr
    return out


@pytest.mark.usefixtures("no_pictures")
def test_two_ranks_give_what_one_gives_with_the_same_recipe(undisturbed: Path, tmp_path: Path) -> None:
    import zoo

    one = zoo.pretrain(RECIPE, out=tmp_path / "one", overrides=SHORT)
    assert_close(undisturbed, one.path)
    assert one.metrics["training"]["ranks"] == 1
    recorded = json.loads((undisturbed / "metrics.json").read_text())["training"]
    assert recorded["ranks"] == 2 and recorded["images"] == one.metrics["training"]["images"]
    assert recorded["hardware"].startswith("2 ranks, each ")


# or torchrun, which looks ten times a second, sends the others SIGTERM before they have noticed themselves
ENDED = rf"{MESSAGE}|zoo, rank \d: stopped by SIGTERM after step \d+ of {STEPS}"


def test_a_killed_rank_ends_the_others_with_a_message_and_torchrun_resumes_by_itself(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    agent = start(command(2, *pretrain(out), options=("--max-restarts", "1")))
    once_at(out, 9, agent)
    os.kill(workers(agent.pid)[-1], signal.SIGKILL)
    _, said = agent.communicate(timeout=600)
    assert agent.returncode == 0, said
    assert re.search(ENDED, said), said
    assert_same_bits(undisturbed, out)


@pytest.mark.slow
def test_a_killed_rank_without_restarts_leaves_a_run_that_can_be_resumed(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    agent = start(command(2, *pretrain(out)))
    once_at(out, 9, agent)
    began = time.monotonic()
    os.kill(workers(agent.pid)[0], signal.SIGKILL)
    _, said = agent.communicate(timeout=600)
    assert agent.returncode != 0
    assert time.monotonic() - began < 45
    assert re.search(ENDED, said), said
    again = run_ranks(*pretrain(out, "--resume"), ranks=2)
    assert again.returncode == 0, again.stderr
    assert_same_bits(undisturbed, out)


def test_a_signal_that_slurm_sends_to_torchrun_saves_on_all_ranks(undisturbed: Path, tmp_path: Path) -> None:
    """With the README's option torchrun hands SIGUSR1 on; then Ctrl-C from a terminal, which all get."""
    out = tmp_path / "slurm"
    options = ("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")
    agent = start(command(2, *pretrain(out), options=options))
    once_at(out, 8, agent)
    agent.send_signal(signal.SIGUSR1)
    _, said = agent.communicate(timeout=600)
    assert len(set(re.findall(r"stopped by SIGUSR1 after step (\d+) of 24", said))) == 1, said
    again = run_ranks(*pretrain(out, "--resume"), ranks=2)
    assert again.returncode == 0, again.stderr
    assert_same_bits(undisturbed, out)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_run_stopped_on_two_ranks_goes_on_with_another_number(
    ranks: int, undisturbed: Path, tmp_path: Path
) -> None:
    """SIGUSR1 at one rank alone: all stop after the same step, within an epoch."""
    out = tmp_path / "moved"
    both = start_ranks(*pretrain(out), ranks=2)
    once_at(out, 8, both)
    os.kill(both.pids[-1], signal.SIGUSR1)
    _, said = both.communicate(timeout=600)
    stops = re.findall(r"stopped by SIGUSR1 after step (\d+) of 24", said)
    assert len(stops) == 2 and len(set(stops)) == 1, said
    assert int(stops[0]) % 6 != 0 or int(stops[0]) < STEPS
    assert losses(out) == losses(undisturbed)[: int(stops[0])]
    again = run_ranks(*pretrain(out, "--resume", overrides=SHORT), ranks=ranks)
    assert again.returncode == 0, again.stderr
    assert_close(undisturbed, out)


def test_trouble_on_one_rank_stops_all_before_the_same_step(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "trouble"
    done = run_ranks("tests/programs/nan_on_one.py", *pretrain(out)[1:], ranks=2)
    assert done.returncode != 0
    said = re.findall(
        r"zoo, rank (\d): the loss became nan in step 8 at .*; the state after step \d+ is saved",
        done.stderr,
    )
    assert sorted(said) == ["0", "1"], done.stderr
    again = run_ranks(*pretrain(out, "--resume"), ranks=2)  # as if it had been the machine
    assert again.returncode == 0, again.stderr
    assert_same_bits(undisturbed, out)


def test_four_ranks_on_two_nodes_are_one_training(undisturbed: Path, tmp_path: Path) -> None:
    """Two torchrun agents on loopback, as two machines would have them."""
    out, port = tmp_path / "nodes", free_port()
    where = ("--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "zoo")
    line = [*LAUNCH, *where, "--rdzv-endpoint", f"127.0.0.1:{port}", *pretrain(out)]
    nodes = [start(line) for _ in range(2)]
    said = [node.communicate(timeout=600) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert_close(undisturbed, out)
    assert json.loads((out / "metrics.json").read_text())["training"]["ranks"] == 4


def test_a_sigterm_that_torchrun_sends_to_data_workers_too_still_saves(tmp_path: Path) -> None:
    out = tmp_path / "workers"
    streamed = ("views.backend=torchvision", "views.workers=1", "training.epochs=40")
    agent = start(command(2, *pretrain(out, overrides=(*SHORT, *streamed))))
    once_at(out, 3, agent)
    agent.send_signal(signal.SIGTERM)
    _, said = agent.communicate(timeout=600)
    assert len(re.findall(r"zoo, rank \d: stopped by SIGTERM after step \d+ of 240", said)) == 2, said


def test_a_script_of_its_own_trains_twice_and_every_rank_says_why_one_ended(tmp_path: Path) -> None:
    done = torchrun("tests/programs/script.py", str(tmp_path), ranks=2)  # the agent's store serves both
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank \d: trained on 2 ranks, twice", done.stdout)) == [
        "rank 0: trained on 2 ranks, twice",
        "rank 1: trained on 2 ranks, twice",
    ]
    assert "rank 1: rank 1 of 2 ends, since rank 0 did: " in done.stdout, done.stdout
    assert "holds a run already" in done.stdout.split("since rank 0 did: ")[1]


def test_what_measures_while_other_ranks_wait_has_their_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(pretraining, "train_stages", lambda *_, **__: seen.append(neighbours()))
    monkeypatch.setattr(pretraining, "finish", lambda *_, **__: seen.append(neighbours()) or mock.Mock())
    monkeypatch.setattr(pretraining, "_track", lambda *_, **__: None)
    r, run = Recipe.load(RECIPE, SHORT), RunFolder(tmp_path)
    pretraining._pretrain(r, [run], tmp_path, None, ALONE, resume=False, at=None, images={})
    assert seen == [8, 1]
