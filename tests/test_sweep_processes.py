"""Sweeps whose runs several processes share: under torchrun, started by hand, stopped, killed."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests import warm

CE = "cifar_resnet20.ce_digits_lt50"
TINY = (
    "schedule.warmup_epochs=0",
    "training.batch_size=10",
    "training.log_every=1",
    "training.checkpoint_every=5",
    "training.device=cpu",
    "data.subset={per_class: 2}",  # 20 images
    "evaluation=[]",
)


def command(out: Path, *options: str, epochs: int = 2, values: str = "0.01,0.02,0.05,0.1") -> list[str]:
    sets = (*TINY, f"training.epochs={epochs}", f"optimizer.lr={values}")
    words = [word for each in sets for word in ("--set", each)]
    return ["tests/programs/plain_sweep.py", "sweep", CE, "--seeds", "0", "--out", str(out), *words, *options]


def start(arguments: list[str]) -> warm.Program:
    return warm.start(*arguments)


def once_there(file: Path, process: warm.Program) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + 600
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def once_at(folder: Path, rows: int, process: warm.Program) -> None:
    """Wait until a run has written so many rows."""
    once_there(folder / "run" / "metrics.jsonl", process)
    while len((folder / "run" / "metrics.jsonl").read_text().splitlines()) < rows:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def trained(text: str) -> list[str]:
    """Return which points a process says that it trains."""
    return re.findall(r"\d of \d: (lr \S+), seed 0\n", text)


def assert_whole(out: Path, points: int) -> None:
    record = json.loads((out / "sweep.json").read_text())
    assert len(record["runs"]) == points and all(run["numbers"] for run in record["runs"])
    assert (out / "report" / "report.html").is_file() and (out / "sweep.md").is_file()


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_processes_of_torchrun_share_the_runs_and_one_reports(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = warm.run_ranks(*command(out, epochs=20), ranks=2)
    assert done.returncode == 0, done.stderr
    by_rank = [
        [
            point
            for point in re.findall(rf"rank {rank}: \d of 4: (lr \S+), seed", done.stderr)
            if f"rank {rank}: {point}, seed 0: another process" not in done.stderr
        ]
        for rank in (0, 1)
    ]
    assert sorted(by_rank[0] + by_rank[1]) == ["lr 0.01", "lr 0.02", "lr 0.05", "lr 0.1"], done.stderr
    assert all(by_rank), "one of them trained all"
    assert done.stdout.count("report: ") == 1
    assert done.stdout.count("the process that finishes last writes the report") == 1
    assert_whole(out, 4)
    for point in ("lr_0.01", "lr_0.1"):
        facts = json.loads((out / point / "seed_0" / "metrics.json").read_text())["training"]
        assert facts["ranks"] == 1  # each trained alone


def test_a_stopped_sweep_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """SIGTERM in the first run; then another process goes on, is killed, and a third takes over."""
    out = tmp_path / "out"
    options = {"epochs": 60, "values": "0.01,0.02"}
    first = start(command(out, **options))  # type: ignore[arg-type]
    once_at(out / "lr_0.01" / "seed_0", 30, first)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=600)
    assert first.returncode == 75, said
    assert "stopped by SIGTERM after step" in said and "--resume" in said
    assert not (out / "lr_0.02").exists() and not (out / "sweep.json").exists()

    killed = start(command(out, "--resume", **options))  # type: ignore[arg-type]
    once_at(out / "lr_0.01" / "seed_0", 60, killed)
    killed.send_signal(signal.SIGSTOP)  # so that it is not done before the other has begun
    other = start(command(out, "--resume", **options))  # type: ignore[arg-type]
    once_at(out / "lr_0.02" / "seed_0", 1, other)  # takes what is free
    killed.kill()
    killed.communicate()
    printed, said = other.communicate(timeout=600)
    assert other.returncode == 0, said
    assert trained(said) == ["lr 0.02", "lr 0.01"]  # and then what the dead one has left
    assert "report: " in printed
    assert_whole(out, 2)

    alone = start(command(tmp_path / "alone", epochs=60, values="0.01,0.02"))
    assert alone.wait(timeout=600) == 0
    for point in ("lr_0.01", "lr_0.02"):
        assert_same_weights(out / point / "seed_0", tmp_path / "alone" / point / "seed_0")
