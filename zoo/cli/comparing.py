"""`zoo finetune --compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.cli.app import listed
from zoo.cli.show import print_columns
from zoo.launch import rank


def compare(
    recipe: str | None,
    *,
    init: str,
    data: str | None,
    out: Path | None,
    methods: str | None,
    seeds: str,
    resume: bool,
    overrides: Sequence[str],
) -> None:
    """Run a comparison and print its table."""
    from zoo import api
    from zoo.evaluation.results.comparison import as_rows

    found = api.compare(
        recipe,
        init=init,
        data=data,
        out=out,
        methods=None if methods is None else listed("--methods", methods),
        seeds=listed("--seeds", seeds),
        resume=resume,
        overrides=overrides,
    )
    if rank() > 0:
        return
    print(f"percent, test split, {found.record['released']}; mean over seeds ± 95 % interval\n")
    print_columns(as_rows(found.summaries))
    for name, reason in found.left_out.items():
        print(f"left out: {name}: {reason}")
    print(f"\npicture: {found.folder / 'comparison.png'}; every run's figures: {found.folder / api.RECORD}")
