"""`zoo.load` against `timm.create_model(..., pretrained=True)`: the same file, the same model, in turn.

Run: python -m tests.benchmarks.load [ARCH...]. The weights are random, written as a release to a temporary
folder. The features of both must be equal to the bit before anything is timed; by then the file is in memory
and has been compared with its hash. Ratios are those of the medians of nine rounds.
"""

import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import timm
import torch
from torch import nn

import zoo
from tests.release_helpers import release_of
from zoo import backbones

TARGETS = {"resnet50": 5, "vit_base_patch16_224": 10, "vit_large_patch16_224": 20}
ROUNDS = 9


def main(architectures: list[str]) -> None:
    """Print times and ratios, and exit with 1 when one is below its target."""
    print(f"torch {torch.__version__}, timm {timm.__version__}, {torch.get_num_threads()} threads, {_cpu()}")
    reached = [_measure(arch) for arch in architectures]
    sys.exit(0 if all(reached) else 1)


def _measure(arch: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        release = release_of(Path(folder) / arch, backbones.create(arch), arch, 224)
        loaders: list[Callable[[], nn.Module]] = [
            lambda: zoo.load(release.path),
            lambda: timm.create_model(f"local-dir:{release.path}", pretrained=True, num_classes=0),
        ]
        time.sleep(2.5)  # until the file counts as settled, see zoo.release.verified
        images = torch.randn(2, 3, 224, 224)
        with torch.no_grad():
            features = [load().eval()(images) for load in loaders]
        if not torch.equal(*features):
            sys.exit(f"{arch}: the features differ, nothing to compare")
        ours, theirs = _medians(loaders)
        # zoo maps the file: its pages are read when they are first used, which this counts as well
        all_ours, all_theirs = _medians([lambda load=load: _read(load()) for load in loaders])
    ratio, target = theirs / ours, TARGETS.get(arch, 1)
    print(
        f"{arch}: zoo {ours * 1e3:.0f} ms, timm {theirs * 1e3:.0f} ms, {ratio:.1f}x (target {target}x); "
        f"with every weight read once, {all_theirs / all_ours:.1f}x"
    )
    return ratio >= target


def _medians(functions: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median seconds of each, called in turn."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(ROUNDS):
        for function, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def _read(model: nn.Module) -> float:
    with torch.no_grad():
        return sum(float(tensor.sum()) for tensor in model.state_dict().values())


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    main(sys.argv[1:] or list(TARGETS))
