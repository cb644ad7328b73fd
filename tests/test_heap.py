"""The command line keeps the memory that a training's steps free and take again."""

import importlib
import json
import platform
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.benchmarks.heap import measure
from zoo.allocator import keep_freed_memory
from zoo.cli import app

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


@glibc
def test_what_is_freed_serves_the_next_and_the_system_gives_nothing_anew():
    kept, given_back = (
        json.loads(subprocess.check_output([sys.executable, "-m", "tests.programs.held", side]))
        for side in ("kept", "given_back")
    )
    assert kept["kept"] and not given_back["kept"]
    if not kept["taken"]:
        pytest.skip("glibc before 2.33 does not say what it holds")
    assert kept["taken"][0] > 60 and max(kept["taken"][1:]) < 1
    assert min(given_back["taken"]) > 50


@glibc
def test_steps_that_keep_what_they_free_compute_the_same_in_hardly_more_memory():
    kept, given_back = measure("kept"), measure("given_back")
    assert kept["kept"] and not given_back["kept"]
    assert kept["gradient"] == pytest.approx(given_back["gradient"], rel=1e-6)
    assert kept["peak"] < given_back["peak"] * 1.1


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_freed_memory() is False


@pytest.mark.parametrize(("most", "accepted"), [(32 * 2**20, True), (0, False)])
def test_an_older_glibc_that_refuses_large_thresholds_is_not_made_slower(monkeypatch, most, accepted):
    calls = []

    class Library:
        @staticmethod
        def mallopt(which: int, value: int) -> int:
            calls.append(which)
            return int(which == -1 or value <= most)

    monkeypatch.setattr("ctypes.CDLL", lambda name: Library)
    assert keep_freed_memory() is accepted
    assert (
        -1 in calls
    ) is accepted  # never the trim threshold alone, which switches off glibc's own adaptation
    assert calls[0] == -3


@pytest.mark.parametrize(
    ("command", "times"), [(["pretrain", "no-such-recipe"], 1), (["show", "no-such-recipe"], 0)]
)
def test_commands_that_train_keep_it_and_others_do_not(monkeypatch, command, times):
    calls = []
    monkeypatch.setattr(importlib.import_module("zoo.cli.app"), "keep_freed_memory", lambda: calls.append(1))
    CliRunner().invoke(app, command)
    assert len(calls) == times
