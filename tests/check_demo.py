"""Checks what `zoo demo` left behind: releases that plain timm loads, pictures, the order of methods.

Run by CI after the README's demo: `python tests/check_demo.py zoo-demo`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import timm
import torch

import zoo
from zoo.release import card


def balanced(folder: Path, protocol: str) -> float:
    entries = json.loads((folder / "metrics.json").read_text())["evaluations"]
    return next(e["metrics"]["balanced_accuracy"] for e in entries if e["protocol"] == protocol)


def main(out: Path) -> None:
    folders = sorted(p.parent for p in out.glob("*/config.json"))
    assert len(folders) == 4, folders
    for folder in folders:
        release = zoo.open(folder)
        release.verify()
        card.check_card(folder, release.config)
        images = torch.randn(4, 3, release.preprocess.input_size, release.preprocess.input_size)
        theirs = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval()(images)
        torch.testing.assert_close(zoo.load(folder).eval()(images), theirs, rtol=1e-4, atol=1e-5)
        for picture in ("curves.png", "features.png", "balance.png"):
            assert (folder / picture).stat().st_size > 10_000, picture
        assert release.history is not None and "gradient_norm" in release.history["columns"], folder
    paco = balanced(out / "cifar_resnet20.paco_digits_lt50", "classifier")
    cross_entropy = balanced(out / "cifar_resnet20.ce_digits_lt50", "classifier")
    # Five labels of each class: raw pixels 81.6, a random encoder 65.5, MoCo + FT 89 to 93 over three seeds.
    assert balanced(out / "cifar_resnet20.moco_v2_ft_digits", "few_shot") > 85
    # One seed, which another processor rounds otherwise; test_learning holds PaCo above it over three.
    assert paco > cross_entropy - 3, (paco, cross_entropy)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
