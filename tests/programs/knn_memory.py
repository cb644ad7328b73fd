"""Encodes images and votes by nearest neighbours under a limit of memory; prints what it took as JSON.

    python -m tests.programs.knn_memory --rows 1000000 --queries 10000 --limit 2048

`RLIMIT_DATA` is what is limited, from before anything is allocated: the process's private writable memory
(heap, anonymous mappings, threads' stacks; the interpreter's and torch's own included), touched or not.
Pages of a mapped file are no part of it: the system drops and reads them again as it needs room.
"""

from __future__ import annotations

import argparse
import json
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.evaluation import features
from zoo.functional.knn import knn_predict

DIM, CLASSES, BATCH = 512, 100, 1024


def images(count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield "images" that are their own features: of each class around a direction of its own."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(0))
    for start in range(0, count, BATCH):
        labels = torch.arange(start, min(start + BATCH, count)) % CLASSES
        noise = 4 * torch.randn(len(labels), DIM, generator=generator)
        yield (centers[labels] + noise).view(-1, 2, 16, 16), labels


def status(key: str) -> int:
    """Return a value of /proc/self/status in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) >> 10


class Peak(threading.Thread):
    """Samples the resident private memory."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done, self.most = threading.Event(), 0

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.most = max(self.most, status("RssAnon"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--queries", type=int, required=True)
    parser.add_argument("--limit", type=int, help="MiB of RLIMIT_DATA")
    parser.add_argument("--room", type=int, help="MiB of RLIMIT_DATA above what the process has now")
    parser.add_argument(
        "--large", type=int, default=features.LARGE >> 20, help="MiB from which a file is used"
    )
    asked = parser.parse_args()
    peak = Peak()
    peak.start()
    torch.randn(512, 512) @ torch.randn(512, 512)  # the libraries take their own
    limit = asked.limit or status("VmData") + asked.room
    resource.setrlimit(resource.RLIMIT_DATA, (limit << 20, limit << 20))
    features.LARGE = asked.large << 20

    began = time.perf_counter()
    bank = features.extract(nn.Flatten(), images(asked.rows, 1), device="cpu", count=asked.rows)
    queries = features.extract(nn.Flatten(), images(asked.queries, 2), device="cpu", count=asked.queries)
    extracted = time.perf_counter()
    voted = knn_predict(*bank, queries.features, k=200, tau=0.07, num_classes=CLASSES).predictions
    ended = time.perf_counter()
    peak.done.set()
    print(
        json.dumps(
            {
                "limit_mib": limit,
                "bank_mib": bank.features.nbytes >> 20,
                "extract_s": round(extracted - began, 1),
                "knn_s": round(ended - extracted, 1),
                "peak_private_mib": peak.most,
                "peak_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                "accuracy": 100 * (voted == queries.labels).double().mean().item(),
            }
        )
    )


if __name__ == "__main__":
    main()
