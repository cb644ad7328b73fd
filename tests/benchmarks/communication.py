"""What training on many ranks sends and costs: `python -m tests.benchmarks.communication [--measure]`.

Prints by the formulas of `tests.benchmarks.traffic` the bytes that a rank sends in a step, the memory its
state needs, and what that costs on the network stated there, for recipes whose batch grows with the ranks.

`--measure` instead takes real steps of tiny recipes on 2 and 4 ranks of this machine (gloo), reads from the
system what each process has handed to its sockets, and compares: exit status 1 where a formula is off by more
than `TOLERANCE`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.benchmarks.traffic import NODE, Message, memory, messages, model_of
from tests.torchrun import torchrun
from zoo.recipe import Recipe

TOLERANCE = 0.003
RANKS = (8, 64, 512)
PIL_SECONDS = (
    8.2e-3  # two views of 224 pixels by torchvision, an image and core (/work/shared/performance.md)
)


class Job(NamedTuple):
    """A training on paper.

    Attributes:
        recipe: shipped.
        changes: of it.
        classes: of its data.
        images: on a GPU in a step.
        seconds: of a step of so many, estimated; None: no estimate.
    """

    recipe: str
    changes: tuple[str, ...]
    classes: int
    images: int
    seconds: float | None = None

    def on(self, ranks: int, *changes: str) -> Recipe:
        """Return the recipe with `images` for each of `ranks`."""
        batch = f"training.batch_size={self.images * ranks}"
        return Recipe.load(self.recipe, (*self.changes, *changes, batch))


_VIT = "vit_large_patch16_224"
R50 = 0.095
"""Two views of 256 images through both ResNet-50, forward and backward: eager, bf16, one H100 (E)."""
VIT_L = 64 * 493e9 / (0.4 * 790e12)
"""64 images: 2 x 3 + 2 passes of 61.6 GFLOP each at 40 % of 790 TFLOP/s (E)."""
JOBS = (
    Job("resnet50.moco_v2_in1k", (), 1000, 256, R50),
    Job("resnet50.moco_v2_in1k", (), 1000, 32, R50 / 8),  # on 8 GPUs the recipe's own batch
    Job("resnet50.moco_v2_in1k", ("objective.key_groups=1", "training.sync_batchnorm=true"), 1000, 256, R50),
    Job("resnet50.paco_imagenet_lt", (), 1000, 256, R50),
    Job(
        "vit_base_patch16_224.moco_v3_in1k",
        (f"backbone.arch={_VIT}", f"name={_VIT}.moco_v3_in1k"),
        1000,
        64,
        VIT_L,
    ),
    Job("cifar_resnet32.sup_con_cifar10_lt100", (), 10, 128),
    Job("resnet18_cifar.simclr_cifar10", (), 10, 128),
    Job("resnet50_cifar.gpaco_cifar100", (), 100, 128),
    Job("cifar_resnet32.bcl_cifar100_lt100", (), 100, 256),
    Job("resnet18_cifar.pico_cifar100_q005", (), 100, 128),
    Job("resnet18_cifar.margin_cifar10", (), 10, 128),
    Job("cifar_resnet32.ce_cifar100", (), 100, 128),
)


class Case(NamedTuple):
    """A tiny training whose steps are measured."""

    name: str
    recipe: str
    changes: tuple[str, ...]


_SHORT = (
    "training.batch_size=64",
    "training.drop_last=true",
    "training.device=cpu",
    "training.precision=fp32",
    "training.sync_batchnorm=false",
)
_DIGITS = "cifar_resnet20.{}_lt50"
_PLAIN = "objective.key_groups=1"
CASES = (
    Case("classify", _DIGITS.format("ce_digits"), ()),
    Case("moco", _DIGITS.format("moco_v2_ft_digits"), ("objective.key_groups=4",)),
    Case("moco_v3", "vit_tiny_patch16_224.moco_v3_digits_lt50", ()),
    Case("simclr", _DIGITS.format("simclr_digits"), ()),
    Case("sup_con", _DIGITS.format("sup_con_digits"), (_PLAIN,)),
    Case("paco", _DIGITS.format("paco_digits"), (_PLAIN,)),
    Case("gpaco", _DIGITS.format("gpaco_digits"), ()),
    Case("bcl", _DIGITS.format("bcl_digits"), ()),
    Case("pico", "cifar_resnet20.pico_digits_q05", (_PLAIN, "objective.prototype_start=0")),
    Case("margin", _DIGITS.format("margin_digits"), ()),
)


def predicted(case: Case, ranks: int) -> float:
    """Bytes that a rank sends over gloo in a step of `case`."""
    recipe = Recipe.load(case.recipe, (*_SHORT, *case.changes))
    model = model_of(recipe, classes=10)
    found = sum(message.over_gloo(ranks) for message in messages(recipe, model, 10, ranks))
    # on a CPU replicas tell each other which parameters had a gradient
    found += Message("used parameters", "all-reduce", 4 * model.tensors).over_gloo(ranks)
    return found


def measured(cases: tuple[Case, ...], ranks: int) -> Iterator[tuple[str, float, float]]:
    """Yield name, bytes written and bytes on the loopback interface, of a step and rank."""
    given = [(case.name, case.recipe, (*_SHORT, *case.changes)) for case in cases]
    done = torchrun("tests/programs/bytes_sent.py", json.dumps(given), ranks=ranks)
    if done.returncode:
        raise RuntimeError(done.stderr)
    for line in done.stdout.splitlines():
        if line.startswith("["):
            name, sent, seen = json.loads(line)
            yield name, sent, seen


def compare() -> bool:
    """Print measured and predicted bytes; return whether all agree."""
    right = True
    print("KB that a rank sends in a step: measured, by formula, difference (on the loopback interface)")
    for ranks in (2, 4):
        for case, (_, sent, seen) in zip(CASES, measured(CASES, ranks), strict=True):
            expected = predicted(case, ranks)
            off = sent / expected - 1
            agrees = abs(off) <= TOLERANCE
            right &= agrees
            print(
                f"{ranks} ranks, {case.name:22} {sent / 1e3:8.1f} {expected / 1e3:8.1f} {off:+7.2%} "
                f"({seen / 1e3:.1f}){'' if agrees else ' WRONG'}",
                flush=True,
            )
    return right


def print_bytes() -> None:
    """Print what a rank sends in a step."""
    print("MB that a rank sends in a step: gradients + all else, of which most")
    for job in JOBS:
        cells = []
        for ranks in (2, *RANKS):
            recipe = job.on(ranks)
            found = list(messages(recipe, model_of(recipe, job.classes), job.classes, ranks))
            hidden = sum(message.sent(ranks) for message in found if message.hidden)
            rest = [message for message in found if not message.hidden]
            most = max(rest, key=lambda message: message.sent(ranks))
            others = sum(message.sent(ranks) for message in rest)
            cells.append(f"{ranks}: {hidden / 1e6:.0f} + {others / 1e6:.1f}")
        print(f"{_title(job)}: {'; '.join(cells)} ({most.what})")


def print_memory() -> None:
    """Print what a rank keeps."""
    print("\nGB of state on a rank, activations aside")
    for job in JOBS[0], JOBS[4]:
        recipe = job.on(NODE)
        model = model_of(recipe, job.classes)
        print(f"{recipe.name}: {memory(recipe, model) / 1e9:.2f}")


def print_times() -> None:
    """Print what the network costs, as far as computing does not hide it."""
    print("\nms of a step (E): computing; gradients meanwhile; all else; share computing")
    for job in JOBS:
        for ranks in RANKS if job.seconds is not None else ():
            recipe = job.on(ranks)
            found = list(messages(recipe, model_of(recipe, job.classes), job.classes, ranks))
            hidden = sum(message.seconds(ranks) for message in found if message.hidden)
            rest = {m.what: m.seconds(ranks) for m in found if not m.hidden}
            waited = max(0.0, hidden - job.seconds / 2) + sum(rest.values())
            most = max(rest, key=lambda what: rest[what])
            print(
                f"{_title(job)}, {ranks} GPUs: {1e3 * job.seconds:.0f}; "
                f"{1e3 * hidden:.1f}; {1e3 * sum(rest.values()):.1f} ({most} {1e3 * rest[most]:.1f}); "
                f"{job.seconds / (job.seconds + waited):.0%}"
            )
        if job.seconds is not None:
            rate = job.images / job.seconds
            print(
                f"    input: {rate:,.0f} images/s a GPU, {rate * PIL_SECONDS:.0f} cores of PIL views for each"
            )


def _title(job: Job) -> str:
    arch = next((c.partition("=")[2] for c in job.changes if c.startswith("name=")), job.recipe)
    joint = ", joint BatchNorm" if "training.sync_batchnorm=true" in job.changes else ""
    return f"{arch}{joint}, {job.images} images each"


def main() -> int:
    """Print the tables, or measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.communication", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="compare the formulas with real steps")
    if parser.parse_args().measure:
        return int(not compare())
    print_bytes()
    print_memory()
    print_times()
    return 0


if __name__ == "__main__":
    sys.exit(main())
