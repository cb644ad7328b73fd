"""What the READMEs show must run, and their figures be the measured ones.

Every Python block is run. Every `zoo` line of a block is run too, unless a comment before the block, which
readers do not see, says why it is `only parsed`: then its command and options have to exist.
"""

import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

import zoo
from tests import warm
from tests.data_fixtures import photo
from zoo.cli import app
from zoo.data import open_dataset
from zoo.objectives import Batch
from zoo.recipe import Recipe
from zoo.training import build_objective

ROOT = Path(__file__).resolve().parent.parent
FRONT = (ROOT / "README.md").read_text()
FOLDERS = (".", "recipes", "zoo", "model_cards", "tests")
READMES = [*(ROOT / folder / "README.md" for folder in FOLDERS), ROOT / "CONTRIBUTING.md"]
TEXTS = "\n".join(path.read_text() for path in READMES)
BLOCKS = re.findall(r"(?:<!-- only parsed: ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```", TEXTS, re.M | re.S)
PYTHON = [code for _, language, code in BLOCKS if language == "python"]


def commands(code: str) -> list[list[str]]:
    """Return the words of each line that calls zoo, however it is started."""
    lines = code.replace("\\\n", " ").splitlines()
    found = (
        re.match(r"(?:\$ |.*&& \.venv/bin/|.*torchrun .*-m )?zoo (?=\w)(.*?)(?: &)?$", line) for line in lines
    )
    return [shlex.split(re.sub(r"\[(.*?)\]", r"\1", line[1]), comments=True) for line in found if line]


RUN = [words for reason, _, code in BLOCKS if not reason for words in commands(code)]
PARSED = [words for reason, _, code in BLOCKS if reason for words in commands(code)]


def run_example(word: str, replaced: dict[str, str] | None = None, **names: Any) -> dict[str, Any]:
    """Run the one Python example that has `word`, with some of its text replaced; return its names."""
    (code,) = (block for block in PYTHON if word in block)
    for old, new in (replaced or {}).items():
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    return names


def test_the_examples_of_loading_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photo(200, 150, 0).save("photo.jpg")
    names = run_example("photo.jpg")
    assert names["features"].shape == (1, 1280)
    run_example("similarity()", **names)
    wanted = {"org/resnet50.moco_v2_in1k": "tf_efficientnet_lite0.paco_cifar100_lt100"}
    names = run_example("FasterRCNN", wanted, zoo=zoo)
    assert names["segmenter"].eval()(torch.randn(1, 3, 64, 64))["out"].shape == (1, 21, 64, 64)
    assert len(PYTHON) == 6  # with the three below


def test_the_example_objective_trains(own_objectives: None) -> None:
    names = run_example("AlignUniform")
    torch.manual_seed(0)
    (section,) = re.findall(r"`objective: (\{name: align_uniform.*?\})`", TEXTS)
    changes = [f"objective={section}", "name=cifar_resnet20.align"]
    recipe = Recipe.load("cifar_resnet20.simclr_digits_lt50", changes)
    objective = build_objective(recipe, open_dataset(recipe.data, "train", None))
    assert isinstance(objective, names["AlignUniform"])
    batch = Batch((torch.randn(6, 3, 8, 8), torch.randn(6, 3, 8, 8)), torch.zeros(6).long(), torch.arange(6))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(objective(batch).loss)
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1


def test_the_examples_of_probes_measure() -> None:
    torch.manual_seed(0)
    labels = torch.arange(20) % 10
    batches = [(torch.randn(20, 3, 8, 8) + labels[:, None, None, None], labels)]
    changes = {'"resnet18.a1_in1k", pretrained=True': '"cifar_resnet20"'}
    changes["cifar10:/data"] = "digits?per_class=3"
    names = run_example("fit_linear", changes, train_loader=batches, test_loader=batches)
    assert names["entry"]["preprocess"]["input_size"] == 32
    assert names["accuracy"] > 0.5
    assert len(names["voted"]) == 20
    assert names["found"]["queries"] == 20


def test_the_example_of_a_loop_of_ones_own_learns() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 128))
    images = torch.randn(16, 3, 4, 4)
    views = tuple(images + 0.1 * torch.randn(16, 3, 4, 4) for _ in range(2))
    loader, optimizer = [(views, torch.full((16,), -1))] * 4, torch.optim.SGD(model.parameters(), lr=0.1)
    names = run_example("info_nce", model=model, loader=loader, optimizer=optimizer)
    assert names["queue"].filled == 64
    assert 0 < names["loss"] < math.log(1 + 48)


@pytest.mark.parametrize("words", PARSED, ids=" ".join)
def test_commands_that_are_only_parsed_exist_with_their_options(words: list[str]) -> None:
    group = get_command(app)
    group.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]


def test_the_other_commands_run(tmp_path: Path) -> None:
    """On photos of two classes, with as little training as there can be."""
    for folder in ("photos/castle", "photos/rose", "new_photos"):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(10):
            photo(40 + i, 48, 7 * i + len(folder)).save(tmp_path / folder / f"{i}.jpg")
    changes = ("training.epochs=1", "training.device=cpu", "training.threads=1", "views.workers=0")
    short = [word for change in changes for word in ("--set", change)]
    assert {words[0] for words in RUN} == {"finetune", "pretrain", "embed", "evaluate", "predict", "export"}
    for words in RUN:
        more = short if words[0] in ("finetune", "pretrain") else []
        done = warm.run("-m", "zoo", *words, *more, cwd=tmp_path)
        assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"


def test_links_lead_somewhere() -> None:
    for path in READMES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text()):
            file = path.parent / target if target else path
            assert file.exists(), f"{path}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
                assert anchor in slugs, f"{path}: {target}#{anchor}"


def test_the_weights_table_has_what_was_measured() -> None:
    rows = re.findall(r"^\| `([\w.]+)`(?: \\\*)? \| ([\d.]+) M \| (\d+) px \| .*? \| ([\d.]+)", FRONT, re.M)
    assert len(rows) == 9
    marked = {*re.findall(r"^\| `([\w.]+)` \\\*", FRONT, re.M), "cifar_resnet20.moco_v2_ft_digits_lt50"}
    assert marked == {*re.findall(r'"model_cards/([\w.]+)', (ROOT / "pyproject.toml").read_text())}
    (views,) = re.findall(r"([\d.]+) with four views", FRONT)
    assert views == f"{zoo.open(rows[0][0]).metrics['evaluations'][-1]['value']:.1f}"
    for name, parameters, size, accuracy in rows:
        release = zoo.open(name)
        found = {each["protocol"]: each["value"] for each in reversed(release.metrics["evaluations"])}
        assert f"{found.get('classifier', found.get('linear')):.1f}" == accuracy, name
        assert release.preprocess.input_size == int(size)
        count = sum(each.numel() for each in release.load().parameters())
        assert f"{count / 1e6:.1f}" == parameters, name
