"""Training with the losses in linear memory is training with the plain ones: 50 steps, loss by loss.

In double precision, where two forms of one equation differ too little for 50 steps of a network with
BatchNorm to show: in single precision any other order of a sum parts two runs within a few steps.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

from tests import plain_losses as plain
from tests.objective_helpers import FT, build
from zoo import functional
from zoo.functional import _streaming
from zoo.objectives import Batch

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    # 50 keys: the queue fills up, is full, and wraps around within a batch
    "MoCo with FT": ("moco", {"queue_size": 50, "feature_transform": FT | {"start_epoch": 0}}),
    "PaCo": ("paco", {"queue_size": 50}),
    "SupCon": ("sup_con", {"queue_size": 50}),
}
STEPS, BATCH = 50, 16


def unit(projected: Tensor) -> Tensor:
    """The objectives' own raises to single precision."""
    return F.normalize(projected, dim=1)


def digits(step: int) -> Batch:
    """Of the classes 0 to 2, two noisy views."""
    images, targets = load_digits(n_class=3, return_X_y=True)
    g = torch.Generator().manual_seed(step)
    index = torch.randint(len(images), (BATCH,), generator=g)
    x = torch.from_numpy(images)[index].reshape(-1, 1, 8, 8).expand(-1, 3, -1, -1) / 8 - 1
    views = tuple(x + 0.1 * torch.randn(x.shape, generator=g, dtype=x.dtype) for _ in range(2))
    return Batch(views, torch.from_numpy(targets)[index], index, None)


def losses(name: str, changes: dict[str, Any]) -> Tensor:
    objective = build(name, **changes)
    for module in objective.modules():
        module.double()
    parameters = [p for p in objective.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    found = []
    for step in range(STEPS):
        torch.manual_seed(step)  # FT's draws
        output = objective(digits(step))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        objective.update(digits(step), output)
        found.append(output.loss.detach())
    return torch.stack(found)


@pytest.mark.parametrize("run", RUNS)
def test_fifty_steps_are_those_of_the_plain_form(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.objectives.contrast.normalize", unit)
    monkeypatch.setattr("zoo.objectives.paco.LearnedCenters.forward", lambda self, x: self.classifier(x))
    monkeypatch.setattr(_streaming, "_CPU", _streaming._Sizes(elements=256, anchors=9))  # some tiles
    fast = losses(*RUNS[run])
    called = []
    for name in ("info_nce", "sup_con", "paco"):
        form = getattr(plain, name)
        monkeypatch.setattr(
            functional, name, lambda *a, f=form, others=None, **kw: called.append(1) or f(*a, **kw)
        )
    expected = losses(*RUNS[run])
    assert len(called) >= STEPS
    assert expected.std() > 1e-2  # something was trained
    torch.testing.assert_close(fast, expected, rtol=1e-8, atol=0)
