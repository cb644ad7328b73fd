"""The command line, run as a person runs it."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests import warm
from tests.data_fixtures import photo
from tests.release_helpers import release_of, some_centers, trained_encoder
from tests.warm import zoo
from zoo import __version__, cli
from zoo.catalog import list_models, list_recipes, list_sweeps
from zoo.cli.app import COMMANDS
from zoo.errors import ZooWarning
from zoo.release import Release

PACO = "cifar_resnet20.paco_digits_lt50"
CE = "cifar_resnet20.ce_digits_lt50"


def shown(*arguments: object) -> list[str]:
    done = zoo(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_list_has_shipped_weights_recipes_and_sweeps_in_100_columns() -> None:
    lines = [line for line in shown("list") if line]
    names = [line.split()[0] for line in lines if not line.split()[0].isupper()]
    shipped = list_models()
    assert names[: len(shipped)] == shipped
    assert sorted(names) == sorted([*{*shipped, *list_recipes()}, *list_sweeps()])
    assert max(map(len, lines)) <= 100
    by_name = {line.split()[0]: line.split()[1:] for line in lines}
    assert by_name[PACO] == ["paco", "89.9", "0.3", "M", "8", "px"]
    assert by_name["resnet50.paco_inat18"][-3:] == ["73.2", "top-1", "[V]"]
    assert by_name["cifar_resnet32.paco_cifar100_lt50"][-3:] == ["56.0", "top-1", "[M]"]
    found = [line.split()[0] for line in shown("list", "_ft_", "--shipped")[1:]]
    assert found == [name for name in shipped if "_ft_" in name]
    for words in (("temperature", "--shipped"), ("pacco",)):
        assert f'nothing matches "{words[0]}"' in zoo("list", *words).stderr


def test_show_has_a_release_on_one_screen_and_the_rest_when_asked(paco: Release) -> None:
    for name in (PACO, str(paco.path)):
        lines = shown("show", name)
        assert len(lines) <= 24 and "centers: 10 classes x 64 features" in lines
        assert any(re.match(r"knn k=5 +\d+\.\d", line) for line in lines)
        text = "\n".join(lines)
        assert f'encoder = zoo.load("{name}").eval()' in text and "momentum" not in text
        assert "  momentum: 0.9" in shown("show", name, "--full"), "a default of the recipe"
    assert "classifier =" not in "\n".join(shown("show", "cifar_resnet20.moco_v2_ft_digits_lt50"))


def test_show_prints_a_recipe_as_it_stands_or_with_every_value(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: x\n")
    assert zoo("show", file).stdout == f"# {file}\nname: x\n"
    file.write_bytes(b"\xff")
    assert zoo("show", file).stderr.startswith(f'zoo: recipe "{file}" cannot be read: ')
    name = "cifar_resnet20.gpaco_digits_lt50"
    assert "  momentum: 0.9" not in shown("show", name)
    assert "  momentum: 0.9" in shown("show", name, "--full")


def test_show_explains_sections_and_keys_of_recipes() -> None:
    lines = shown("show", "paco")
    assert lines[0] == "objective.paco"
    at = lines.index("objective.paco.center_tau: float; default 1.0")
    assert lines[at + 1] == "    Temperature of the centers' logits, prior included."
    assert shown("show", "training.epochs")[0] == "training.epochs: int"
    assert "training: section" in shown("show", "keys") and "objective.moco_v3" in shown("show", "objective")
    done = zoo("show", "optimiser")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert 'Did you mean "optimizer"?' in done.stderr


def test_names_versions_and_mistakes_are_printed_without_torch(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = (
        ("pretrain", "cifar_resnet20.paco_digit_lt50"),
        ("pretrain", PACO, "--data", "/no/where"),
        ("pretrain", PACO, "--data", "digitz"),
        ("pretrain", PACO, "--out", str(tmp_path / "file")),
        ("evaluate", "knn", PACO, "--set", "k"),
        ("embed", PACO, "--data", "digits", "--out", "x.txt"),
        ("predict", PACO, "a.png", "--out", "x.txt"),
    )
    code = (
        "import contextlib, io, sys\n"
        "from zoo.cli import app\n"
        "from zoo.errors import ZooError\n"
        "app(['--version'], standalone_mode=False)\n"
        "app(['list', '*paco*'], standalone_mode=False)\n"
        f"for words in {refused!r}:\n"
        "    try: app(list(words), standalone_mode=False)\n"
        "    except ZooError as error: print('refused', error)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    found = re.fullmatch(r"contrastive-zoo (\S+), torch (\S+), timm (\S+), Python 3\.\d+\.\d+", lines[0])
    assert found is not None and found.groups() == (__version__, version("torch"), version("timm"))
    assert sum(line.startswith("refused ") for line in lines) == len(refused)
    assert 'Did you mean "cifar_resnet20.paco_digits_lt50"' in done.stdout


def test_output_in_another_encoding_is_no_traceback(tmp_path: Path) -> None:
    names = ["猫", "café", "c", "d", "e"]
    release = release_of(tmp_path / "r", trained_encoder(), centers=some_centers(64), class_names=names)
    photo(32, 32, 0).save(tmp_path / "a.png")
    command = [sys.executable, "-m", "zoo", "predict", release.path, tmp_path / "a.png", "--top", "5"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "\\u732b" in done.stdout and "caf\\xe9" in done.stdout


def test_pretrain_evaluate_show(tmp_path: Path) -> None:
    out = tmp_path / "release"
    changes = ("--set", "training.epochs=2", "--set", "schedule.warmup_epochs=1", "--device", "cpu")
    done = subprocess.run(  # as a person's shell starts it; the others here begin with torch imported
        [sys.executable, "-m", "zoo", "pretrain", PACO, "--out", str(out), *changes],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "step 22/22" in done.stderr  # progress in plain lines
    assert f'zoo.load("{out}")' in done.stdout
    done = zoo("evaluate", "knn", out, "--set", "k=3", "--data", "digits")
    assert re.search(r"knn k=3 +\d+\.\d", done.stdout), done.stderr
    assert re.search(r"^547 test images; k=3, tau=0\.07(, [\w ]+=\S+)*$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith(f"recorded in {out / 'metrics.json'} and its card\n")
    kept = (out / "metrics.json").read_bytes()
    assert "knn k=5 " in zoo("evaluate", "knn", out, "--no-save").stdout, "as recorded"
    assert (out / "metrics.json").read_bytes() == kept
    done = zoo("evaluate", "classifier", PACO, "--set", "tau=0.5")
    assert "not recorded" in done.stdout.splitlines()[-1]
    assert re.search(r"^zoo: warning: classifier: the log prior was in", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("pretrain", PACO, "--set", "objective.tua=1"), 1, 'key "objective.tua". Did you mean "tau"?'),
        (("pretrain", PACO, "--set", "epochs=2"), 1, 'key "epochs". Did you mean "training.epochs"?'),
        (("evaluate", "knn", "nowhere"), 1, 'no release "nowhere"'),
        (("evaluate", "knn", PACO, "--device", "cuda:1"), 1, 'device: found "cuda:1"'),
        (("evaluate", "knn", PACO, "--set", "k=1", "--set", "k=2"), 1, '--set: "k" is given twice'),
        (("evaluate", "knn", PACO, "--set", "protocol=knn"), 1, 'unknown key "protocol"'),
        (("evaluate", "knn", PACO, "--set", "data=digits"), 1, 'unknown key "data"'),
        (("show", "resnet50.moco_v2_in1kk"), 1, 'Did you mean "resnet50.moco_v2_in1k"'),
        (("show", "resnet50"), 1, 'Did you mean "timm:resnet50"?'),
        (("demo", "--out", "/proc/version"), 1, "not an empty folder"),
        (("pretrain",), 2, "RECIPE"),
        (("predict", PACO), 2, "IMAGES"),
        (("pretrain", PACO, "--no-such-option"), 2, "No such option"),
        (("no-such-command",), 2, "no-such-command"),
    ],
)
def test_a_mistake_is_one_line_and_its_status(
    arguments: tuple[str, ...], status: int, expected: str, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "out") if arguments[:2] == ("pretrain", PACO) else ()
    done = zoo(*arguments, *out)
    assert done.returncode == status, done.stderr
    assert expected in done.stderr and "Traceback" not in done.stderr
    assert status == 2 or done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


TINY = [
    "--set=training.epochs=1",
    "--set=schedule.warmup_epochs=0",
    "--set=training.batch_size=10",
    "--set=training.device=cpu",
    "--set=data.subset={per_class: 2}",
]


@pytest.mark.parametrize("found", ["long", "foreign"])
@pytest.mark.parametrize(
    "arguments", [("pretrain", CE, *TINY), ("diagnose", PACO, "--sample", "4"), ("pull", PACO)]
)
def test_a_folder_that_may_not_be_looked_at_is_said_in_one_line(
    arguments: tuple[str, ...],
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / ("x" * 300 if found == "long" else "theirs/out")
    if found == "foreign":  # the tests may run as root, whom no permission stops
        for name in ("stat", "mkdir", "listdir", "scandir", "open"):
            monkeypatch.setattr(os, name, refusing(getattr(os, name), out.parent))
    monkeypatch.setattr(sys, "argv", ["zoo", *arguments, "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1, said
    reason = {"long": "File name too long", "foreign": "Permission denied"}[found]
    assert re.search(rf"^zoo: .*{out.name[:20]}.*: .*{reason}", said[-1]), said


def refusing(call: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Let a call of the system be refused for what is below a folder of somebody else's."""

    def called(path: Any, *rest: Any, **more: Any) -> Any:
        if not isinstance(path, int) and str(path).startswith(str(folder)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return call(path, *rest, **more)

    return called


def test_help_loses_nothing_in_brackets() -> None:
    """rich reads `[word]` as its markup and prints nothing of it."""
    found = 0
    for name, command in _commands().items():
        texts = [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
        shown = CliRunner().invoke(cli.app, [name, "--help"], env={"TERMINAL_WIDTH": "500"}).output
        for each in re.findall(r"\[[^]]*\]", " ".join(texts)):
            assert "".join(each.split()) in "".join(shown.split()), f"zoo {name} --help: {each}"
            found += 1
    assert found >= 2


def _commands() -> dict[str, Any]:
    group: Any = get_command(cli.app)
    return dict(group.commands)


def test_a_reader_that_leaves_ends_a_command_in_silence() -> None:
    """`zoo list | head -1`: no traceback, and the status of a program that SIGPIPE has ended."""
    reading, writing = os.pipe()
    os.close(reading)
    # lines are written at once, or all of them at the end
    for options in (("-u",), ()):
        command = [sys.executable, *options, "-m", "zoo", "list"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (141, "")
    os.close(writing)


def test_a_command_that_is_no_training_says_that_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["zoo", "list"])
    monkeypatch.setattr("zoo.catalog.list_models", lambda pattern: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "zoo: interrupted\n"


def test_warnings_are_one_line_without_a_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        warnings.warn("of zoo\nand more \x1b[31m", ZooWarning, stacklevel=2)
        warnings.warn("another's", FutureWarning, stacklevel=2)

    monkeypatch.setattr(cli, "app", command)
    before = warnings.showwarning, logging.getLogger("zoo").propagate
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # else main sets it for good
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        cli.main()
        assert (warnings.showwarning, logging.getLogger("zoo").propagate) == before
    said = "zoo: warning: of zoo and more \\x1b[31m\nzoo: warning: FutureWarning: another's\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("number", "program"),
    [(signal.SIGINT, ("-m", "zoo")), (signal.SIGTERM, ("tests/programs/plain_sweep.py",))],
)
def test_interrupting_saves_and_tells_how_to_go_on_and_resume_finishes(
    number: int, program: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "release"
    command = [*program, "pretrain", PACO, "--out", str(out), "--set", "training.epochs=8"]
    command += ["--set", "training.log_every=1", "--set", "evaluation=[{protocol: classifier}]"]
    process = warm.start(*command)
    metrics = out / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not (metrics.is_file() and metrics.read_text().count("\n") >= 5):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 75  # EX_TEMPFAIL: the same command with --resume will succeed
    assert "is saved in" in stderr
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    assert not (out / "config.json").exists()
    again = warm.run(*command)
    assert again.returncode == 1
    assert "--resume" in again.stderr
    done = warm.run(*command, "--resume")
    assert done.returncode == 0, done.stderr
    assert (out / "config.json").is_file()


def test_help_lists_the_commands_as_a_user_meets_them_and_none_is_missing() -> None:
    assert {*_commands()} == {*COMMANDS}
    shown = zoo("--help").stdout
    places = [re.search(rf"^│ {name} ", shown, re.MULTILINE) for name in COMMANDS]
    starts = [place.start() for place in places if place is not None]
    assert len(starts) == len(COMMANDS)
    assert starts == sorted(starts)
