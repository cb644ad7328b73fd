"""Several processes as torchrun starts them: the steps of one, whole trainings, and every kind of end."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.objective_helpers import VIT
from tests.test_training import RECIPES, SHORT
from tests.warm import ROOT, Program, start_ranks
from zoo.training import RunFolder

CHANGES = (
    *(*VIT, *SHORT, "training.epochs=4"),  # 6 steps an epoch, the last of 24 images
    "training.channels_last=false",  # its kernels round otherwise than those for a rank's smaller batch
    *("objective.queue_size=100", "objective.key_groups=1", "objective.head_batchnorm=false"),
    *("objective.tau=0.5", "objective.feature_transform.start_epoch=0"),
    "optimizer.lr=0.002",  # with more, 24 steps make much of a rounding
    "evaluation=[]",
)
STEPS = 24
# or torchrun, which looks ten times a second, sends the others SIGTERM before they have noticed themselves
ENDED = (
    r"zoo, rank \d: rank \d of \d lost the others"
    rf"|zoo, rank \d: stopped by SIGTERM after step \d+ of {STEPS}"
)


def pretrain(out: Path, *more: str) -> list[str]:
    changes = [text for change in CHANGES for text in ("--set", change)]
    return ["tests/programs/plain_sweep.py", "pretrain", RECIPES["moco"], "--out", str(out), *changes, *more]


def losses(out: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in RunFolder(out / "run").rows()]


def assert_same_bits(a: Path, b: Path) -> None:
    assert losses(a) == losses(b)
    one, other = ((folder / "model.safetensors").read_bytes() for folder in (a, b))
    assert one == other


def assert_close(a: Path, b: Path) -> None:
    """To what another order of every sum leaves after 24 steps in float32."""
    one, other = dict(losses(a)), dict(losses(b))
    assert [*one] == [*other] == list(range(1, STEPS + 1))
    assert [*one.values()] == pytest.approx([*other.values()], rel=5e-3)


def once_at(out: Path, rows: int, process: subprocess.Popen[str] | Program) -> None:
    """Wait until a run has written so many rows."""
    file = out / "run" / "metrics.jsonl"
    for _ in range(300_000):
        if file.is_file() and len(file.read_text().splitlines()) >= rows:
            return
        assert process.poll() is None, process
        time.sleep(0.002)
    raise AssertionError("the run does not get there")


def last_worker(agent: int) -> int:
    """Return the last process that a torchrun has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == agent:
                found.append(int(entry.name))
    return max(found)


def torchrun(*arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start two processes of a program as people do; they need not have this checkout installed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *options, *arguments], cwd=ROOT, env=environment, **pipes)


def finished(programs: list[Program], code: int = 0) -> list[str]:
    """Wait for all ranks to end so; return what each printed, or said of an error."""
    done = [each.finish(timeout=600) for each in programs]
    assert [each.returncode for each in done] == [code] * len(done), [each.stderr for each in done]
    return [each.stderr if code else each.stdout for each in done]


def test_collectives_give_every_rank_the_rows_in_order_and_ranks_meet_again() -> None:
    said = finished(start_ranks("tests/programs/collectives.py", ranks=2, ZOO_RANK_TIMEOUT="6"))
    assert said == ["rank 0 of 2: ok\n", "rank 1 of 2: ok\n"]


def test_the_steps_of_several_ranks_are_those_of_one_with_the_whole_batch() -> None:
    """In float64: weights, queue, labels, pointer, optimizer, of every objective."""
    said, _ = finished(start_ranks("tests/programs/steps.py", ranks=2))
    assert said.count(": ok\n") == len(RECIPES)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release of two ranks that nothing happened to."""
    out = tmp_path_factory.mktemp("ranks") / "two"
    agent = torchrun("-m", "zoo", *pretrain(out)[1:])
    stdout, stderr = agent.communicate(timeout=600)
    assert agent.returncode == 0, stderr
    assert stdout.count("load it:") == 1  # one rank speaks
    assert "Traceback" not in stderr and "Warning" not in stderr, stderr
    assert json.loads((out / "metrics.json").read_text())["training"]["ranks"] == 2
    return out


def test_a_killed_rank_ends_the_others_and_torchrun_resumes(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    agent = torchrun(*pretrain(out), options=("--max-restarts", "1"))
    once_at(out, 9, agent)
    os.kill(last_worker(agent.pid), signal.SIGKILL)
    _, said = agent.communicate(timeout=600)
    assert agent.returncode == 0, said
    assert re.search(ENDED, said), said
    assert_same_bits(undisturbed, out)


def test_a_signal_at_one_rank_stops_all_and_more_go_on(undisturbed: Path, tmp_path: Path) -> None:
    """All stop after the same step, within an epoch."""
    out = tmp_path / "moved"
    both = start_ranks(*pretrain(out), ranks=2)
    once_at(out, 8, both[0])
    os.kill(both[1].pid, signal.SIGUSR1)
    stopped = r"stopped by SIGUSR1 after step (\d+) of 24"
    first, second = (re.findall(stopped, said) for said in finished(both, code=75))
    assert first == second and len(first) == 1
    assert losses(out) == losses(undisturbed)[: int(first[0])]
    finished(start_ranks(*pretrain(out, "--resume"), ranks=4))
    assert_close(undisturbed, out)
