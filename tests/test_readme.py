"""What the READMEs show must run, and their figures be the measured ones."""

import math
import re
from pathlib import Path
from typing import Any

import torch
from typer.main import get_command

import zoo
from zoo.cli import app
from zoo.data import open_dataset
from zoo.objectives import Batch
from zoo.recipe import Recipe
from zoo.training import build_objective

ROOT = Path(__file__).resolve().parent.parent
FRONT = (ROOT / "README.md").read_text()
READMES = [ROOT / folder / "README.md" for folder in (".", "recipes", "zoo", "model_cards")]
README = "\n".join(path.read_text() for path in READMES)


def run_example(word: str, replaced: dict[str, str] | None = None, **names: Any) -> dict[str, Any]:
    """Run the one Python example that has `word`, with some of its text replaced; return its names."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (code,) = (block for block in blocks if word in block)
    for old, new in (replaced or {}).items():
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    return names


def test_the_example_objective_of_the_readme_trains(own_objectives: None) -> None:
    names = run_example("AlignUniform")
    torch.manual_seed(0)
    (section,) = re.findall(r"`objective: (\{name: align_uniform.*?\})`", README)
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


def test_commands_exist_and_links_lead_somewhere() -> None:
    used = set(re.findall(r"^(?:.*&& \.venv/bin/)?zoo (\w+)", README, re.MULTILINE))
    assert {"evaluate", "finetune", "pretrain"} <= used <= {*get_command(app).commands}  # type: ignore
    for path in READMES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text()):
            file = path.parent / target if target else path
            assert file.exists(), f"{path}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
                assert anchor in slugs, f"{path}: {target}#{anchor}"


def test_the_weights_table_has_what_was_measured() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| ([\d.]+) M \| (\d+) px \| .*? \| ([\d.]+)", FRONT, re.M)
    assert len(rows) == 8
    for name, parameters, size, accuracy in rows:
        release = zoo.open(name)
        found = {each["protocol"]: each["value"] for each in release.metrics["evaluations"]}
        assert f"{found.get('classifier', found.get('linear')):.1f}" == accuracy, name
        assert release.preprocess.input_size == int(size)
        count = sum(each.numel() for each in release.load().parameters())
        assert f"{count / 1e6:.1f}" == parameters, name
