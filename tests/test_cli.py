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

from tests import convert_helpers as made
from tests import warm
from tests.warm import zoo
from zoo import __version__, cli
from zoo.catalog import list_models, list_recipes, list_sweeps
from zoo.cli.app import COMMANDS
from zoo.errors import ZooError, ZooWarning
from zoo.hub import resolve
from zoo.release import Release

PACO = "cifar_resnet20.paco_digits_lt50"
CE = "cifar_resnet20.ce_digits_lt50"


def test_list_names_recipes_by_pattern_without_importing_torch() -> None:
    code = (
        "import sys; sys.argv = ['zoo', 'list', '*paco*']\n"
        "from zoo.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines() if line]
    assert PACO in names
    assert all("paco" in name for name in names if not name.isupper())


def test_list_marks_where_a_target_was_read_and_no_target_has_no_mark() -> None:
    lines = {line.split()[0]: line for line in zoo("list").stdout.splitlines() if line}
    assert "73.2 top-1 [V]" in lines["resnet50.paco_inat18"]
    assert "56.0 top-1 [M]" in lines["cifar_resnet32.paco_cifar100_lt50"]
    assert not [line for line in lines.values() if "none [" in line]


def listed(*arguments: str) -> list[str]:
    lines = zoo("list", *arguments).stdout.splitlines()
    return [line.split()[0] for line in lines if line and not line.split()[0].isupper()]


def test_list_has_the_shipped_weights_first_and_alone_when_asked() -> None:
    shipped = list_models()
    assert listed()[: len(shipped)] == shipped
    assert sorted(listed()) == sorted([*{*shipped, *list_recipes()}, *list_sweeps()])
    assert listed("--shipped") == shipped
    assert listed("_ft_", "--shipped") == [name for name in shipped if "_ft_" in name]
    assert zoo("list", "temperature", "--shipped").stderr.startswith('zoo: no shipped weights match "temper')
    assert "--shipped: found with --hub" in zoo("list", "--shipped", "--hub", "x").stderr


def test_list_fits_a_terminal_and_says_what_weights_are_worth() -> None:
    lines = zoo("list").stdout.splitlines()
    assert max(map(len, lines)) <= 100
    (paco,) = (line for line in lines if line.startswith(f"{PACO} "))
    assert paco.split()[1:] == ["paco", "89.9", "0.3", "M", "8", "px"]


def test_list_finds_names_that_contain_a_text_and_says_when_there_is_none() -> None:
    lines = zoo("list", "pico_cifar10_").stdout.splitlines()
    assert [line.split()[0].partition(".")[2] for line in lines[1:]] == [
        f"pico_cifar10_q0{q}" for q in (1, 3, 5)
    ]
    assert "93.58 top-1 [V]" in lines[3]
    assert zoo("list", "pacco").stderr == 'zoo: nothing matches "pacco"; "zoo list" shows all names\n'


def test_show_prints_a_recipe_as_it_stands_and_a_release_with_its_figures(paco: Release) -> None:
    shown = zoo("show", PACO).stdout
    assert "name: paco" in shown and "momentum: 0.9\n" not in shown
    for name in (PACO, paco.path):
        assert "\n  momentum: 0.9\n" in zoo("show", name, "--full").stdout, "a default"
    shown = zoo("show", paco.path).stdout
    assert "10 classes x 64 features" in shown
    assert "digits, long tail 50" in shown
    assert re.search(r"knn k=5 +\d+\.\d", shown)


def test_show_guesses_no_recipe_for_a_name_that_is_explained_already() -> None:
    assert "Did you mean" not in zoo("show", "resnet50.tv_in1k").stderr, "timm's own, and no slip"
    for name, suggests in (("resnet50.tv_in1k", True), (f"{PACO[:-1]}x", True), ("nothing_like_it", False)):
        with pytest.raises(ZooError) as caught:
            resolve(name)
        assert caught.value.suggests is suggests


def test_pretrain_evaluate_show(tmp_path: Path) -> None:
    out = tmp_path / "release"
    changes = ("--set", "training.epochs=2", "--set", "schedule.warmup_epochs=1")
    done = subprocess.run(  # as a person's shell starts it; the others here begin with torch imported
        [sys.executable, "-m", "zoo", "pretrain", PACO, "--out", str(out), *changes],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "step 22/22" in done.stderr  # progress in plain lines
    assert f'zoo.load("{out}")' in done.stdout.replace("\n", "")
    done = zoo("evaluate", "knn", out, "--set", "k=3", "--data", "digits")
    assert done.returncode == 0, done.stderr
    assert re.search(r"knn k=3 +\d+\.\d", done.stdout)
    assert re.search(r"^547 test images; k=3, tau=0\.07(, [\w ]+=\S+)*$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith(f"recorded in {out / 'metrics.json'} and its card\n")
    kept = (out / "metrics.json").read_bytes()
    done = zoo("evaluate", "knn", out, "--set", "k=4", "--data", "digits", "--no-save")
    assert done.stdout.endswith("not recorded: --no-save\n")
    assert (out / "metrics.json").read_bytes() == kept
    done = zoo("evaluate", "classifier", PACO, "--set", "tau=0.5")
    assert done.stdout.endswith("not recorded: a shipped release stays as it is\n")
    assert re.search(r"^zoo: warning: classifier, tau: .* cross-entropy$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("pretrain", "cifar_resnet20.paco_digit_lt50"), 'Did you mean "cifar_resnet20.paco_digits_lt50"'),
        (("pretrain", PACO, "--set", "objective.tua=1"), 'unknown key "objective.tua". Did you mean "tau"?'),
        (("evaluate", "knn", "no/such/folder"), "no/such/folder"),
        (("evaluate", "knn", "nowhere"), 'no release "nowhere"'),
        (("evaluate", "knn", PACO, "--device", "cuda:1"), 'device: found "cuda:1"'),
        (("evaluate", "knn", PACO, "--set", "k=1", "--set", "k=2"), '--set: "k" is given twice'),
        (("evaluate", "knn", PACO, "--set", "protocol=knn"), 'unknown setting "protocol". It has: k, tau'),
        (("show", "nothing_like_it"), 'no release "nothing_like_it"'),
        (
            ("show", "resnet50.moco_v2_in1kk"),
            'nor is it a recipe or sweep. Did you mean "resnet50.moco_v2_in1k"',
        ),
        (("show", "resnet50"), "timm's own weights are called"),
        (("list", "zzz*"), 'nothing matches "zzz*"'),
        (("pretrain", "cifar_resnet20.paco_cifar100_lt100_short", "--data", "/no/where"), "/no/where"),
        (("demo", "--out", "/proc/version"), "not an empty folder"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(
    arguments: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    done = zoo(*arguments, *(("--out", tmp_path / "out") if arguments[0] == "pretrain" else ()))
    assert done.returncode == 1, done.stderr
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
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
    "arguments",
    [
        ("pretrain", CE, *TINY),
        ("pretrain", CE, "--profile", *TINY),
        ("demo",),
        ("table", PACO),
        ("diagnose", PACO, "--sample", "4"),
        ("reproduce", PACO),
        ("finetune", CE, "--init", PACO, *TINY),
        ("compare", CE, "--init", PACO, "--methods", "crt", "--seeds", "0", *TINY),
        ("sweep", CE, "--seeds", "0,1", *TINY),
        ("pull", PACO),
        ("convert", "FILE", "--family", "paco", "--arch", "cifar_resnet20"),
        ("evaluate", "linear_full", PACO, "--set", "epochs=1", "--set", "milestones=[]"),
    ],
    ids=lambda arguments: "_".join(word for word in arguments[:5] if word.isidentifier()),
)
def test_a_folder_that_may_not_be_looked_at_is_said_in_one_line(
    arguments: tuple[str, ...],
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = made.save(tmp_path / "moco_ckpt.pth.tar", made.PaCo(classes=10))
    out = tmp_path / ("x" * 300 if found == "long" else "theirs/out")
    if found == "foreign":  # the tests may run as root, whom no permission stops
        for name in ("stat", "mkdir", "listdir", "scandir", "open"):
            monkeypatch.setattr(os, name, refusing(getattr(os, name), out.parent))
    words = [str(file) if word == "FILE" else word for word in arguments]
    monkeypatch.setattr(sys, "argv", ["zoo", *words, "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1, said
    assert re.search(r"^zoo: .* cannot be written: .*", said[-1]), said
    assert {"long": "File name too long", "foreign": "Permission denied"}[found] in said[-1]


def refusing(call: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Let a call of the system be refused for what is below a folder of somebody else's."""

    def called(path: Any, *rest: Any, **more: Any) -> Any:
        if not isinstance(path, int) and str(path).startswith(str(folder)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return call(path, *rest, **more)

    return called


@pytest.mark.parametrize("arguments", [("list",), ("pretrain", PACO)])
@pytest.mark.parametrize("world", ["", "two", "0"])
def test_a_launchers_variable_that_is_no_number_is_named(
    arguments: tuple[str, ...],
    world: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setattr(sys, "argv", ["zoo", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(f'zoo: the variable WORLD_SIZE: found "{world}", expected a whole number')
    assert said.count("\n") == 1


def test_help_lists_the_commands_as_a_user_meets_them_and_none_is_missing() -> None:
    assert [*_commands()] == [*COMMANDS]
    shown = zoo("--help").stdout
    places = [re.search(rf"^│ {name} ", shown, re.MULTILINE) for name in COMMANDS]
    starts = [place.start() for place in places if place is not None]
    assert len(starts) == len(COMMANDS)
    assert starts == sorted(starts)


def test_help_loses_nothing_in_brackets() -> None:
    """rich reads `[word]` as its markup and prints nothing of it."""
    found = 0
    for name, command in _commands().items():
        texts = [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
        shown = CliRunner().invoke(cli.app, [name, "--help"], env={"TERMINAL_WIDTH": "500"}).output
        for each in re.findall(r"\[[^]]*\]", " ".join(texts)):
            assert "".join(each.split()) in "".join(shown.split()), f"zoo {name} --help: {each}"
            found += 1
    assert found >= 3


def _commands() -> dict[str, Any]:
    group: Any = get_command(cli.app)
    return dict(group.commands)


def test_wrong_usage_is_status_2() -> None:
    assert zoo("pretrain").returncode == 2
    assert zoo("no-such-command").returncode == 2
    assert zoo("pretrain", PACO, "--no-such-option").returncode == 2


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
    assert "the state is saved" in stderr
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    assert not (out / "config.json").exists()
    again = warm.run(*command)
    assert again.returncode == 1
    assert "--resume" in again.stderr
    done = warm.run(*command, "--resume")
    assert done.returncode == 0, done.stderr
    assert (out / "config.json").is_file()


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


def test_show_prints_a_recipe_given_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: x\n")
    assert zoo("show", file).stdout == f"# {file}\nname: x\n"
    file.write_bytes(b"\xff")
    done = zoo("show", file)
    assert done.returncode == 1
    assert done.stderr.startswith(f'zoo: recipe "{file}" cannot be read: ')


def test_versions_are_printed_without_importing_torch() -> None:
    code = "import sys; from zoo.cli import app; app(['--version'], standalone_mode=False)\n"
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = re.fullmatch(r"contrastive-zoo (\S+), torch (\S+), timm (\S+), Python 3\.\d+\.\d+\n", done.stdout)
    assert found is not None, done.stdout
    assert found.groups() == (__version__, version("torch"), version("timm"))


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


def test_what_other_libraries_log_is_printed_once_off_a_terminal() -> None:
    code = (
        "import logging, sys\n"
        "from zoo import cli\n"
        "from huggingface_hub.utils import logging as theirs\n"
        "def app():\n"
        "    theirs.get_logger('huggingface_hub.file_download').warning('from the Hub')\n"
        "    logging.getLogger('zoo.hub').info('from zoo')\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("from the Hub") == 1
    assert done.stderr.splitlines()[-1] == "from zoo"


def test_keys_explains_a_section_by_its_name() -> None:
    lines = zoo("keys", "paco").stdout.splitlines()
    assert lines[0] == "objective.paco: Parametric contrastive learning."
    at = lines.index("objective.center_tau: number from 0.001; default 1.0")
    assert lines[at + 1] == "    Temperature of the centers' logits, prior included."
    assert any(
        line.startswith("objective.feature_transform.positives.alpha: number above 0.5") for line in lines
    )
    listed = zoo("keys").stdout
    assert '"zoo keys SECTION" shows those of a section' in listed
    assert "bcl, classify, gpaco, margin, moco" in listed
    shown = zoo("keys", "momentum").stdout
    assert ".momentum.start: " in shown and "optimizer.momentum: number from 0, below 1" in shown
    done = zoo("keys", "optimiser")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert 'Did you mean "optimizer"?' in done.stderr
