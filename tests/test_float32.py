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


@pytest.fixture(params=SURROUNDINGS)
def surroundings(request: pytest.FixtureRequest) -> Iterator[None]:
    request.param()
    CUDNN.deterministic = True
    yield
    torch.backends.fp32_precision = CUDNN.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    CUDNN.allow_tf32, CUDNN.deterministic = True, False


class Encoder(torch.nn.Module):
    """Notes what it is called in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = (*settings(), CUDNN.allow_tf32, CUDNN.deterministic)
        return x.flatten(1)


@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "of a probe"])
def test_convolutions_are_rounded_only_where_a_training_says_so(precision: str) -> None:
    encoder, images, before = Encoder(), torch.zeros(2, 3, 4, 4), settings()
    if precision == "of a probe":
        extract(encoder, [images], device="cpu")
    else:
        with float32_products(precision, fastest=True):
            encoder(images)
    conv, _, matmul, older, deterministic = encoder.seen  # libraries read the older setting
    assert conv == ("tf32" if precision == "tf32" else "ieee") and matmul != "tf32" and deterministic
    assert precision == "tf32" or not older
    assert settings() == before
