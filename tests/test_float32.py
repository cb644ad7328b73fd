"""What is called float32 is multiplied as float32, whatever was set before, and set again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from zoo.evaluation.encode import extract
from zoo.training.precision import fastest_kernels, float32_products

CUDNN, MATMUL = torch.backends.cudnn, torch.backends.cuda.matmul
CPU = torch.device("cpu")


def settings() -> tuple[str, str, str]:
    """What torch computes with, whichever setting says so."""
    return CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision, MATMUL.fp32_precision


def older_flag() -> bool | None:
    """None: torch refuses to read it."""
    try:
        return CUDNN.allow_tf32
    except RuntimeError:
        return None


def nothing() -> None:
    pass


def everywhere() -> None:
    torch.backends.fp32_precision = "tf32"


def convolutions() -> None:
    CUDNN.conv.fp32_precision = "ieee"


def older() -> None:
    CUDNN.allow_tf32 = False


def products() -> None:
    torch.set_float32_matmul_precision("high")


@pytest.fixture(params=[nothing, everywhere, convolutions, older, products])
def surroundings(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    yield request.param
    torch.backends.fp32_precision = CUDNN.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    CUDNN.allow_tf32 = True


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_training_rounds_convolutions_only_where_it_says_so(
    surroundings: Callable[[], None], precision: str
) -> None:
    surroundings()
    before = settings()
    with fastest_kernels(CPU, precision):
        conv, _, matmul = settings()
        assert conv == ("tf32" if precision == "tf32" else "ieee")
        assert matmul != "tf32"
    assert settings() == before


def test_features_are_float32s_and_leave_everything_as_it_was(surroundings: Callable[[], None]) -> None:
    surroundings()
    CUDNN.deterministic = True
    seen, before = [], settings()

    class Encoder(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((*settings(), CUDNN.deterministic))
            return x.flatten(1)

    try:
        extract(Encoder(), [(torch.zeros(2, 3, 4, 4), torch.zeros(2))], device=CPU)
    finally:
        CUDNN.deterministic = False
    ((conv, _, matmul, deterministic),) = seen
    assert (conv, matmul != "tf32", deterministic) == ("ieee", True, True)
    assert settings() == before


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_the_older_flag_can_be_read_inside_and_is_as_it_was_afterwards(
    surroundings: Callable[[], None], precision: str
) -> None:
    """Also by who sets flags for a moment, as libraries do."""
    surroundings()
    before = older_flag()
    with fastest_kernels(CPU, precision):
        assert older_flag() == (precision == "tf32")
        inside = settings()
        with CUDNN.flags(enabled=False), float32_products():
            assert older_flag() is False
        assert settings() == inside
        assert older_flag() == (precision == "tf32")
    assert older_flag() == before


def test_an_error_inside_leaves_everything_as_it_was(surroundings: Callable[[], None]) -> None:
    surroundings()
    before = settings()
    with pytest.raises(KeyError), float32_products():
        raise KeyError
    assert settings() == before
