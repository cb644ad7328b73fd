"""Mutated files of every kind: a few hundred here, thousands with `-m slow` or `python -m tests.fuzz`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import mutate
from tests.fuzz.case import Case, random_of
from tests.fuzz.driver import Tally, fuzz
from tests.fuzz.guard import Guard
from tests.fuzz.judge import judge, problems, run
from tests.fuzz.kinds import KINDS
from zoo.config import load_yaml
from zoo.errors import ReleaseError, ZooError
from zoo.release.format import read_json

ROOT = Path(__file__).resolve().parents[1]
SECONDS, MEMORY = 20.0, 2 << 30
# Cases that take a moment (a conversion, an evaluation) are few here.
FEW = dict.fromkeys(("release", "card", "counts", "history"), 4) | dict.fromkeys(
    ("weights", "checkpoint", "safetensors"), 6
)
SHORT = dict.fromkeys(KINDS, 10) | dict.fromkeys(("spec", "override", "list"), 30) | FEW
LONG = 3000


@pytest.fixture(scope="module")
def guard() -> Guard:
    import matplotlib.font_manager  # which looks for fonts, once, by calling other programs

    assert matplotlib.font_manager.fontManager
    return Guard()


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for cases, in which the process works, and caches of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # lightning, once imported by any test, sets it, and torch then looks for GPUs by NVIDIA's own library
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "case"


def empty(folder: Path) -> Path:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_in_one_line(kind: str, alone: Path, guard: Guard) -> None:
    found = []
    for number in range(SHORT[kind]):
        outcome = judge(KINDS[kind], kind, 1, number, empty(alone), guard, seconds=SECONDS, memory=MEMORY)
        if outcome.failures:
            found.append((f"python -m tests.fuzz {kind} --seed 1 --only {number}", outcome.failures))
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_damaged_files_are_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    tally = last(fuzz(kind, range(LONG), seed=2, keep=tmp_path))
    assert tally.tried == LONG
    assert not [(failure.command, failure.problems) for failure in tally.failures]


# --- with hypothesis, which finds small examples --------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    choices=st.randoms(use_true_random=False),
    kind=st.sampled_from(["recipe", "override", "list"]),
)
def test_hypothesis_makes_cases_too(choices: Random, kind: str, alone: Path, guard: Guard) -> None:
    case = KINDS[kind](choices, empty(alone))
    assert run(case, alone, guard, seconds=SECONDS, memory=MEMORY).failures == []


@given(st.text(max_size=200) | st.lists(st.sampled_from(mutate._YAML_LINES), max_size=4).map("\n".join))
def test_any_text_is_yaml_of_plain_values_or_refused(text: str) -> None:
    try:
        found = load_yaml(text, "mine.yaml")
    except ZooError as error:
        assert list(problems(str(error), ("mine.yaml",))) == []
    else:
        assert plain(found)


def plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(
            isinstance(key, str | int | float | bool | None) and plain(item) for key, item in value.items()
        )
    return (
        all(map(plain, value))
        if isinstance(value, list)
        else isinstance(value, str | int | float | bool | None)
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PLAIN.map(lambda data: mutate.to_json(Random(0), data)) | st.binary(max_size=40))
def test_any_bytes_are_a_json_object_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    try:
        assert isinstance(read_json(file), dict)
    except ReleaseError as error:
        assert list(problems(str(error), ("config.json",))) == []


# --- the fuzzer itself -----------------------------------------------------------------------------------


def last(tallies: Iterator[Tally]) -> Tally:
    *_, tally = tallies
    return tally


@pytest.mark.parametrize(
    ("bug", "found"),
    [
        ("traceback", "read: KeyError at "),
        ("hangs", "read: hangs: took more than 1 s"),
        ("fills", "read: the memory was asked for: "),
        ("grows", "allocates "),
        ("runs", "read: code runs: pickle.find_class"),
        ("writes", "read: code runs: open "),
        ("message", "read: a message with Python in it: "),
        ("nameless", "read: a message that names none of ('mine.txt',): 'not valid'"),
    ],
)
def test_a_planted_bug_is_found(bug: str, found: str, alone: Path, guard: Guard) -> None:
    from tests.fuzz import planted

    seconds = 1 if bug == "hangs" else 60
    outcome = judge(getattr(planted, bug), bug, 0, 0, empty(alone), guard, seconds=seconds, memory=128 << 20)
    assert any(failure.startswith(found) for failure in outcome.failures), outcome


def test_pages_that_were_free_before_a_case_count_as_well(alone: Path, guard: Guard) -> None:
    from tests.fuzz import planted

    for _ in range(2):  # once a block of this size was freed, glibc takes them from the heap
        blocks = [b"x" * (1 << 20) for _ in range(350)]
        del blocks[:-1]  # the last one holds those below it in the process
    outcome = judge(planted.grows, "grows", 0, 0, empty(alone), guard, seconds=60, memory=128 << 20)
    assert outcome.growth > 250 << 20, blocks[0][:1]


def test_a_process_that_dies_or_does_not_hear_is_found_and_replaced(tmp_path: Path) -> None:
    """One worker after another: the bug does not end the run."""
    died = last(fuzz("tests.fuzz.planted:dies_at_odd_numbers", range(3), 0))
    assert (died.tried, died.succeeded) == (3, 2)
    (failure,) = died.failures
    assert failure.number == 1
    assert failure.problems == ["the process died, exit code -6"]
    deaf = last(fuzz("tests.fuzz.planted:deaf_at_odd_numbers", range(2), 0, seconds=0.2, keep=tmp_path))
    (failure,) = deaf.failures
    assert failure.problems[0].startswith("hangs: no answer in ")
    assert (tmp_path / "tests.fuzz.planted:deaf_at_odd_numbers-0-1" / "FAILURE.txt").is_file()


def test_the_command_reports_in_a_table_and_says_how_to_see_a_failure_again(tmp_path: Path) -> None:
    kinds = ["tests.fuzz.planted:fine", "tests.fuzz.planted:traceback"]
    command = [sys.executable, "-m", "tests.fuzz", *kinds, "--count", "4", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 1, done.stderr
    rows = {line.split()[0]: line.split()[1:5] for line in done.stdout.splitlines()[:3]}
    assert rows["KIND"] == ["TRIED", "SUCCEEDED", "REFUSED", "FAILED"]
    assert rows["tests.fuzz.planted:traceback"] == ["4", "0", "0", "4"]
    tried, succeeded, refused, failed = map(int, rows["tests.fuzz.planted:fine"])
    assert (tried, succeeded + refused, failed) == (4, 4, 0)
    assert "4 x python -m tests.fuzz tests.fuzz.planted:traceback --seed 0 --only 0" in done.stdout
    assert len(list((tmp_path / "out").iterdir())) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_told_by_kind_seed_and_number(kind: str, alone: Path) -> None:
    def made(number: int) -> tuple[str, dict[str, bytes]]:
        case: Case = KINDS[kind](random_of(kind, 7, number), empty(alone))
        files = (file for file in alone.rglob("*") if file.is_file() and file.stat().st_size < 1 << 24)
        return case.note, {str(file): file.read_bytes() for file in files}

    if kind != "decoded":  # whose record holds the times of files
        assert made(3) == made(3)
    assert len({str(made(number)) for number in range(4)}) > 1


@pytest.mark.parametrize(
    "message",
    [
        "",
        "two\nlines x",
        "x: \x1b[2J",
        "x" * 9000,
        "x: <class 'int'>",
        "x: None",
        "x: Unable to allocate 3 GiB",
    ],
)
def test_a_bad_message_is_seen(message: str) -> None:
    assert list(problems(message, ("x",)))
    assert not list(problems('mine.yaml: "a.b": found None (NoneType), expected a number', ("mine.yaml",)))
