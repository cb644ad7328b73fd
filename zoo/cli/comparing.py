"""`zoo finetune --compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.cli.show import print_columns
from zoo.config import load_yaml
from zoo.errors import RecipeError
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
        methods=None if methods is None else _listed("--methods", methods),
        seeds=_listed("--seeds", seeds),
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


def _listed(option: str, text: str) -> list[Any]:
    """Read a list with or without its brackets."""
    values = load_yaml(text if text.lstrip().startswith("[") else f"[{text}]", f'{option} "{text}"')
    if not isinstance(values, list):
        raise RecipeError(f'{option} "{text}": expected a list, e.g. 0,1,2')
    return values
