"""The command line, run as a person runs it."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests import warm
from tests.data_fixtures import photo
from tests.release_helpers import release_of, some_centers, trained_encoder
from tests.warm import zoo
from zoo import cli
from zoo.catalog import list_models, list_recipes, list_sweeps
from zoo.cli.app import check_early
from zoo.cli.show import print_evaluations
from zoo.release import Release

PACO = "cifar_resnet20.paco_digits_lt50"


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
    assert f"{PACO} paco 89.9 classifier 0.3 M 8 px".split() in [line.split() for line in lines]
    found = [line.split()[0] for line in shown("list", "_ft_", "--shipped")[1:]]
    assert found == [name for name in shipped if "_ft_" in name]
    assert 'nothing matches "temperature"' in zoo("list", "temperature", "--shipped").stderr


def test_show_has_a_release_on_one_screen_and_the_rest_when_asked(paco: Release) -> None:
    for name in (PACO, str(paco.path)):
        lines = shown("show", name)
        assert len(lines) <= 24 and "centers: 10 classes x 64 features" in lines
        assert any(re.match(r"knn k=5 +\d+\.\d", line) for line in lines)
        assert any(f'encoder = zoo.load("{name}").eval()' in line for line in lines)
        assert "  momentum: 0.9" not in lines
        assert "  momentum: 0.9" in shown("show", name, "--full"), "a default of the recipe"


def test_all_results_are_shown_also_those_of_equal_settings_or_of_none_recorded(capsys) -> None:
    entry = {"protocol": "linear", "data": "digits", "settings": None}
    print_evaluations([{**entry, "metrics": {"accuracy": accuracy}} for accuracy in (2.0, 3.0, 4.0)])
    assert re.findall(r"\d\.\d", capsys.readouterr().out) == ["2.0", "3.0", "4.0"]


def test_show_prints_a_recipe_as_it_stands_or_with_every_value_and_explains_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: x\n")
    assert zoo("show", file).stdout == f"# {file}\nname: x\n"
    name = "cifar_resnet20.gpaco_digits_lt50"
    assert "  momentum: 0.9" not in shown("show", name)
    assert "  momentum: 0.9" in shown("show", name, "--full")
    assert any(line.startswith("question: ") for line in shown("show", "temperature"))
    lines = shown("show", "paco")
    assert lines[0] == "objective.paco"
    at = lines.index("objective.paco.center_tau: float; default 1.0")
    assert lines[at + 1] == "    Temperature of the centers' logits, prior included."
    assert shown("show", "training.epochs")[0] == "training.epochs: int"
    assert "training: section" in shown("show", "keys") and "objective.moco_v3" in shown("show", "objective")


def test_names_versions_and_mistakes_are_printed_without_torch(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = (
        ("pretrain", "cifar_resnet20.paco_digit_lt50"),
        ("pretrain", PACO, "--data", "/no/where"),
        ("pretrain", PACO, "--out", str(tmp_path / "file")),
        ("evaluate", "knn", PACO, "--set", "k"),
        ("embed", PACO, "--data", "digits", "--out", "x.txt"),
    )
    code = (
        "import sys, zoo\nfrom zoo.cli import app\n"
        f"for words in (['--version'], ['list', '*paco*'], *{refused!r}):\n"
        "    try: app([*words], standalone_mode=False)\n"
        "    except zoo.ZooError as error: print('refused', error)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    packages = ("contrastive-zoo", "torch", "timm")
    assert lines[0] == ", ".join(f"{each} {version(each)}" for each in packages)
    assert sum(line.startswith("refused ") for line in lines) == len(refused)
    check_early(data="hub:org/name")  # data of the Hub are no spec
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
    changes = ("--set=training.epochs=2", "--set=schedule.warmup_epochs=1", "--device=cpu")
    command = [sys.executable, "-m", "zoo", "pretrain", PACO, "--out", str(out), *changes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "step 22/22" in done.stderr  # progress in plain lines
    assert f'zoo.load("{out}")' in done.stdout
    done = zoo("evaluate", "knn", out, "--set", "k=3", "--data", "digits")
    assert re.search(r"knn k=3 +\d+\.\d", done.stdout), done.stderr
    assert "547 test images, k=3, tau=0.07" in done.stdout
    assert done.stdout.endswith(f"recorded in {out / 'metrics.json'}\n")
    assert "knn k=5 " in zoo("evaluate", "knn", out).stdout, "as recorded"
    done = zoo("evaluate", "classifier", PACO, "--set", "tau=0.5")
    assert done.stdout.splitlines()[-1].startswith("not recorded: "), "a shipped release"
    assert re.search(
        r"^zoo: warning: classifier: .* already removed the log prior", done.stderr, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("pretrain", PACO, "--set", "objective.tua=1"), 1, 'key "objective.tua". Did you mean "tau"?'),
        (("evaluate", "knn", "nowhere"), 1, 'no release "nowhere"'),
        (("evaluate", "knn", PACO, "--device", "cuda:1"), 1, 'device: found "cuda:1"'),
        (("evaluate", "knn", PACO, "--set", "data=digits"), 1, 'unknown key "data"'),
        (("show", "optimiser"), 1, 'Did you mean "optimizer"?'),
        (("show", "paco_digits"), 1, 'see "zoo list"'),
        (("demo", "--out", "/proc/version"), 1, "not an empty folder"),
        (("pretrain", PACO, "--device", "cpu", "--out", "x" * 300), 1, "File name too long"),
        (("pretrain",), 2, "RECIPE"),
        (("predict", PACO), 2, "IMAGES"),
        (("no-such-command",), 2, "no-such-command"),
    ],
)
def test_a_mistake_is_one_line_and_its_status(arguments, status, expected, tmp_path) -> None:
    out = ("--out", tmp_path / "out") if arguments[:3] == ("pretrain", PACO, "--set") else ()
    done = zoo(*arguments, *out)
    assert done.returncode == status, done.stderr
    assert expected in done.stderr and "Traceback" not in done.stderr
    assert status == 2 or done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_help_lists_all_commands_and_loses_nothing_in_brackets() -> None:
    """rich reads `[word]` as its markup and prints nothing of it."""
    group: Any = get_command(cli.app)
    first = "demo list show pretrain finetune evaluate embed predict diagnose sweep compare table reproduce"
    assert [*group.commands] == f"{first} push pull convert export snapshot".split()
    for name, command in group.commands.items():
        texts = [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
        shown = CliRunner().invoke(cli.app, [name, "--help"], env={"TERMINAL_WIDTH": "500"}).output
        for each in re.findall(r"\[[^]]*\]", " ".join(texts)):
            assert "".join(each.split()) in "".join(shown.split()), f"zoo {name} --help: {each}"


def test_a_reader_that_leaves_ends_a_command_in_silence() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for options in (["-u"], []):  # lines are written at once, or all of them at the end
        command = [sys.executable, *options, "-m", "zoo", "list"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (141, "")
    os.close(writing)


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_closed_streams_as_of_a_daemon_are_no_error(closed: str) -> None:
    command = f"{sys.executable} -m zoo list --shipped {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and ("PARAMS" in done.stdout) == (closed == "2>&-")


def test_a_command_that_is_no_training_says_that_it_was_interrupted(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["zoo", "list"])
    monkeypatch.setattr("zoo.catalog.list_models", lambda pattern: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "zoo: interrupted\n"


def test_interrupting_saves_and_tells_how_to_go_on_and_resume_finishes(tmp_path: Path) -> None:
    out = tmp_path / "release"
    command = ["tests/programs/plain_sweep.py", "pretrain", PACO, "--out", str(out)]
    changes = ("training.epochs=8", "training.log_every=1", "evaluation=[{protocol: classifier}]")
    command += [f"--set={change}" for change in changes]
    process = warm.start(*command)
    metrics = out / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not (metrics.is_file() and metrics.read_text().count("\n") >= 5):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    done = process.finish()
    assert done.returncode == 75  # EX_TEMPFAIL: the same command with --resume will succeed
    assert "is saved in" in done.stderr and "--resume" in done.stderr and "Traceback" not in done.stderr
    assert not (out / "config.json").exists()
    again = warm.run(*command)
    assert again.returncode == 1 and "--resume" in again.stderr
    assert warm.run(*command, "--resume").returncode == 0
    assert (out / "config.json").is_file()


@pytest.mark.parametrize("killed", [True, False])
def test_a_decoding_process_that_was_killed_is_one_line_and_other_errors_of_torch_are_not(
    killed: bool, monkeypatch, capsys
) -> None:
    said = "DataLoader worker (pid 9) is killed by signal: Killed." if killed else "a fault of ours"
    monkeypatch.setattr("sys.argv", ["zoo", "list"])
    monkeypatch.setattr("zoo.catalog.list_models", Mock(side_effect=RuntimeError(said)))
    with pytest.raises(SystemExit if killed else RuntimeError) as ended:
        cli.main()
    if killed:
        assert isinstance(ended.value, SystemExit) and ended.value.code == 1
        assert said in (line := capsys.readouterr().err) and line.count("\n") == 1
