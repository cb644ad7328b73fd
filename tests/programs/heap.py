"""Steps of ResNet-32 on a CPU core, with and without `zoo.allocator`: page faults and CPU time.

Prints one JSON line.

python -m tests.programs.heap kept|given_back
"""

from __future__ import annotations

import json
import resource
import sys
import time

from tests.process_memory import status
from zoo.allocator import keep_freed_memory

BATCH, STEPS = 128, 8


def main() -> None:
    """Do some steps, then measure the next."""
    kept = sys.argv[1] == "kept" and keep_freed_memory()
    import torch  # after the heap is set, as in the command line

    from zoo.backbones import create

    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = create("cifar_resnet32").train().to(memory_format=torch.channels_last)
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)

    def step() -> None:
        encoder.zero_grad()
        encoder(images).square().sum().backward()

    step()
    step()
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
    for _ in range(STEPS):
        step()
    seconds, after = time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF)
    gradient = sum(float(p.grad.double().abs().sum()) for p in encoder.parameters() if p.grad is not None)
    found = {
        "kept": kept,
        "faults": (after.ru_minflt - before.ru_minflt) / STEPS,
        "seconds": seconds / STEPS,
        "peak": status("VmHWM"),
        "gradient": gradient,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
