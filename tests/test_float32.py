"""What is called float32 is multiplied as float32, whatever was set before, and set again afterwards."""

from collections.abc import Callable, Iterator

import pytest
import torch

from zoo.evaluation.encode import extract
from zoo.training.precision import float32_products

CUDNN, MATMUL = torch.backends.cudnn, torch.backends.cuda.matmul
SURROUNDINGS: list[Callable[[], object]] = [
    lambda: None,
    lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    lambda: setattr(CUDNN, "allow_tf32", False),
    lambda: torch.set_float32_matmul_precision("high"),
]


def settings() -> tuple[str, str, str]:
    """What torch computes with, whichever setting says so."""
    return CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision, MATMUL.fp32_precision


@pytest.fixture(params=SURROUNDINGS, autouse=True)
def surroundings(request: pytest.FixtureRequest) -> Iterator[None]:
    request.param()
    yield
    torch.backends.fp32_precision = CUDNN.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    CUDNN.allow_tf32, CUDNN.deterministic = True, False


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_training_rounds_convolutions_only_where_it_says_so(precision: str) -> None:
    before = settings()
    with float32_products(precision, fastest=True):
        conv, _, matmul = settings()
        assert conv == ("tf32" if precision == "tf32" else "ieee")
        assert matmul != "tf32"
        assert precision == "tf32" or not CUDNN.allow_tf32  # the older setting, which libraries read
    assert settings() == before


def test_features_are_float32s_and_leave_everything_as_it_was() -> None:
    CUDNN.deterministic = True
    seen, before = [], settings()

    class Encoder(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((*settings(), CUDNN.deterministic))
            return x.flatten(1)

    extract(Encoder(), [(torch.zeros(2, 3, 4, 4), torch.zeros(2))], device="cpu")
    ((conv, _, matmul, deterministic),) = seen
    assert (conv, matmul != "tf32", deterministic) == ("ieee", True, True)
    assert settings() == before
