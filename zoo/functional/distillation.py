"""What a trained classifier says of an image, as the target of another."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import ArgumentError
from zoo.functional.precision import together


def distillation(logits: Tensor, teacher_logits: Tensor, *, tau: float) -> Tensor:
    """Cross what a student says with what its teachers say on average: tau^2 KL(p || s).

    s = softmax(z / tau) is the student's distribution over classes, p = mean_t softmax(v_t / tau) that of the
    teachers; both are softened by tau > 1. The gradient by z shrinks with 1 / tau^2, which the factor undoes:
    the loss keeps its weight beside one of labels whatever tau is.

    Args:
        logits: the student's class scores z `[N, C]`.
        teacher_logits: those of each of T teachers, v `[T, N, C]`.
        tau: temperature above 0.

    Returns:
        The mean over the N samples, `[]`; 0 where the student says what the teachers do.

    Raises:
        ArgumentError: for other shapes, or a temperature of 0 or less.

    Source: Hinton, Vinyals and Dean 2015, https://arxiv.org/abs/1503.02531, section 2; the mean of several
    teachers is the arithmetic one of its section 1.
    """
    if not (tau > 0 and math.isfinite(tau)):
        raise ArgumentError(f"tau: found {tau}, expected a number above 0")
    if teacher_logits.ndim != 3 or teacher_logits.shape[1:] != logits.shape or not len(teacher_logits):
        raise ArgumentError(
            f"teacher_logits: found {list(teacher_logits.shape)}, expected [T, N, C] with the student's "
            f"[N, C] = {list(logits.shape)}"
        )
    logits, teacher_logits = together(logits, teacher_logits)
    said = (teacher_logits / tau).log_softmax(dim=2)
    target = torch.logsumexp(said, dim=0) - math.log(len(said))
    student = (logits / tau).log_softmax(dim=1)
    return tau**2 * F.kl_div(student, target, reduction="batchmean", log_target=True)
