"""The house keeps its directions and sizes, and what is called most passes few functions."""

import subprocess
import sys
from collections.abc import Callable

import pytest

import zoo
from tests.size import ROOT, sizes
from tests.test_step import stepper_and_batches
from zoo.recipe import Recipe

PACO = "cifar_resnet20.paco_digits_lt50"


def test_imports_keep_to_the_directions_of_the_architecture():
    code = "from importlinter.cli import lint_imports_command as run; run()"
    command = [sys.executable, "-c", code, "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_no_room_is_larger_than_its_limit() -> None:
    assert [(name, found, limit) for name, found, limit in sizes() if found > limit] == []


def passed(call: Callable[[], object]) -> tuple[int, int]:
    """Return how many functions and files of zoo a second call enters, comprehensions and lambdas aside."""
    call()  # imports, and names that are fetched at their first use
    found = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{ROOT}/zoo/") and code.co_name[0] != "<":
            found.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(found), len({file for file, _ in found})


def test_the_knn_evaluation_of_a_release_passes_few_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")  # encoded, hashed and offered to the cache each time
    functions, files = passed(lambda: zoo.evaluate(PACO, "knn"))
    assert functions <= 119 and files <= 25, (functions, files)


def test_a_step_of_paco_passes_few_functions() -> None:
    stepper, batches = stepper_and_batches(Recipe.load(PACO), 2)
    steps = iter(enumerate(batches))
    functions, files = passed(lambda: stepper(*next(steps)))
    assert functions <= 40 and files <= 15, (functions, files)
