"""What the README shows must run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from zoo import backbones
from zoo.objectives import Batch, DataInfo

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


def test_the_example_objective_of_the_readme_trains() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (code,) = (block for block in blocks if "AlignUniform" in block)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    torch.manual_seed(0)
    config = names["AlignUniformConfig"](name="align_uniform", dim=8, weight=1.0)
    info = DataInfo(torch.tensor([3, 3]))
    objective = names["AlignUniform"](config, backbones.create("cifar_resnet20"), info)
    batch = Batch((torch.randn(6, 3, 8, 8), torch.randn(6, 3, 8, 8)), torch.zeros(6).long(), torch.arange(6))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        output = objective(batch)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        losses.append(output.loss.item())
    assert losses[-1] < losses[0] - 0.1


def test_commands_of_the_readme_exist() -> None:
    from typer.main import get_command

    from zoo.cli import app

    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    used = set(re.findall(r"^(?:.*&& \.venv/bin/)?zoo (\w+)", README, re.MULTILINE))
    assert used <= commands
    assert {"list", "evaluate", "finetune", "pretrain"} <= used
