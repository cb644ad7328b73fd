"""Every row of the table of speeds: `python -m tests.benchmarks [NAME...] [--device cpu|cuda]`.

Runs the rows of the CPU, on one thread, and those of a GPU where there is one. Exit status 0: every gate
green and every target reached; 1: a target missed; 2: a gate red, or a benchmark that could not run.
"""

import argparse
import importlib
import sys
import traceback
from pathlib import Path

import torch

from tests.benchmarks import authors
from tests.benchmarks.harness import GateError, Row, machine

NAMES = ["epoch", "step", "losses", "load", "encode", "probe", "input", "views", "launches"]


def main() -> int:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], help="default: the CPU, and a GPU if there is one"
    )
    parser.add_argument("--authors", type=Path, metavar="DIR", help="PaCo/LT of the authors' repository")
    asked = parser.parse_args()
    authors.folder = asked.authors
    if unknown := sorted({*asked.names} - {*NAMES}):
        parser.error(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    devices = [asked.device] if asked.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    print(machine(), flush=True)
    rows: list[Row] = []
    red = False
    for device, name in ((device, name) for device in devices for name in asked.names or NAMES):
        print(f"-- {name}, {device}", flush=True)
        if device == "cpu":
            torch.set_num_threads(1)  # to be compared, and measured by the processor's time
        try:
            for row in importlib.import_module(f"tests.benchmarks.{name}").rows(torch.device(device)):
                rows.append(row)
                print(row, flush=True)
        except ModuleNotFoundError as error:
            print(f"    no {error.name} here: skipped")
        except Exception as error:  # e.g. too little memory: other rows still count
            red = True
            print(f"RED GATE {error}" if isinstance(error, GateError) else f"FAILED {traceback.format_exc()}")
    print("| what | fastest peer | ours | peer | ratio | floor / ours |\n|---|---|---:|---:|---:|---:|")
    print("\n".join(row.cells() for row in rows))
    print(f"{sum(row.reached for row in rows)} of {len(rows)} targets reached")
    return 2 if red else int(not all(row.reached for row in rows))


if __name__ == "__main__":
    sys.exit(main())
