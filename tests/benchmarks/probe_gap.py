"""What the fast probe is worth: `linear` beside `linear_full` on the same encoders.

    python -m tests.benchmarks.probe_gap [RELEASE...] [--data SPEC] [--set KEY=VALUE...]

Two calls of `zoo evaluate` for each release, and the difference. `--set` is for `linear_full`; without it,
the settings are ones for digits: 8 pixels bear no crops of a tenth of the image, and a rate of 30 is one for
ResNet-50 on ImageNet. They were set before anything was measured.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import zoo
from zoo.cli.app import key_values

DIGITS: dict[str, Any] = {"lr": 0.3, "batch_size": 64, "scale": [0.8, 1.0], "ratio": [1.0, 1.0], "flip": 0.0}


def main() -> None:
    """Measure and print one line a release."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.probe_gap", description=__doc__)
    parser.add_argument("releases", nargs="*", help="names or folders; default: the shipped ones of digits")
    parser.add_argument("--data", help="as of zoo evaluate")
    parser.add_argument("--set", nargs="*", dest="settings", metavar="KEY=VALUE", help="of linear_full")
    asked = parser.parse_args()
    settings = DIGITS if asked.settings is None else key_values(asked.settings)
    print("| release | metric | linear | linear_full | gap |\n|---|---|---:|---:|---:|")
    embedded = [
        name for name in zoo.list_models() if zoo.open(name).recipe["data"]["source"]["kind"] == "digits"
    ]
    for name in asked.releases or embedded:
        with tempfile.TemporaryDirectory() as folder:
            fast = zoo.evaluate(name, "linear", asked.data, save=False)["metrics"]
            full = zoo.evaluate(name, "linear_full", asked.data, save=False, out=folder, **settings)
        for metric in ("accuracy", "balanced_accuracy", "calibration_error"):
            ours, theirs = fast[metric], full["metrics"][metric]
            print(f"| {name} | {metric} | {ours:.2f} | {theirs:.2f} | {theirs - ours:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
