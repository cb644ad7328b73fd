"""What a person sees of a training: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from zoo.launch import crowd, rank

PLAIN_INTERVAL = 10.0  # seconds between lines where there is no terminal


_LOOKS = {"knn_accuracy": "kNN", "validation_accuracy": "validation"}
"""What is shown of a look at images, in percent, and how it is called."""

Report = Callable[[Mapping[str, float]], None]
"""Receives each row of metrics.jsonl as it is written."""


@contextmanager
def show_progress(name: str, total: int, start: int) -> Iterator[Report]:
    """Yield a reporter for a run of `total` steps that begins at `start`; it writes to standard error."""
    console = Console(stderr=True)
    began = time.monotonic()
    newest: Mapping[str, float] = {}  # of the training itself
    seen = ""  # of the last look

    def describe(row: Mapping[str, float]) -> str:
        nonlocal newest, seen
        found = [f"{called} {row[each]:.1f} %" for each, called in _LOOKS.items() if each in row]
        if found:
            seen, row = found[0], newest
        newest = row
        if not row:  # before the first of the training, after it went on
            return f"{seen}  starting"
        per_step = (time.monotonic() - began) / max(row["step"] - start, 1)
        left = timedelta(seconds=round(per_step * (total - row["step"])))
        epochs = row["epoch"] * total / row["step"]
        middle = seen or f"lr {row['lr']:.2g}"  # not both: with the bar they would not fit into 80 columns
        return (
            f"epoch {row['epoch']:.1f}/{epochs:.0f}  loss {row['loss']:.3f}  {middle}  "
            f"{row['images_per_second']:,.0f} images/s  {left} left"
        )

    if console.is_terminal and crowd() == 1:  # several bars would write over each other
        console.print(name)  # on a line of its own: with the bar it would not fit into 80 columns
        with Progress(BarColumn(bar_width=12), TextColumn("{task.description}"), console=console) as bar:
            task = bar.add_task("starting", total=total, completed=start)
            yield lambda row: bar.update(task, completed=row["step"], description=describe(row))
        return

    last = began

    def plain(row: Mapping[str, float]) -> None:
        nonlocal last
        described = describe(row)
        if row["step"] == total or time.monotonic() - last >= PLAIN_INTERVAL:
            last = time.monotonic()
            print(f"{name}: step {row['step']}/{total}  {described}", file=sys.stderr, flush=True)

    yield plain


def show_first_step(seconds: float, left: int) -> None:
    """Say at once how long a step takes, where all that are `left` take more than a minute.

    The first one is the slowest: workers start in it, kernels are chosen or compiled.
    """
    if seconds * left > 60:
        most = timedelta(seconds=round(seconds * left))
        say(f"the first step took {seconds:.1f} s, start included; {left:,} more take at most {most}")


@contextmanager
def show_images(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield what is told how many more of `total` images are done; `text` says what is done with them."""
    console = Console(stderr=True)
    began = last = time.monotonic()
    done = 0

    def describe() -> str:
        speed = done / max(time.monotonic() - began, 1e-9)
        left = timedelta(seconds=round((total - done) / max(speed, 1e-9)))
        return f"{text}: {done:,} of {total:,} images  {speed:,.0f} images/s  {left} left"

    if console.is_terminal and crowd() == 1:
        with Progress(BarColumn(bar_width=12), TextColumn("{task.description}"), console=console) as bar:
            task = bar.add_task(f"{text}: {total:,} images", total=total)

            def drawn(count: int) -> None:
                nonlocal done
                done += count
                bar.update(task, completed=done, description=describe())

            yield drawn
        return

    say(f"{text}: {total:,} images")

    def plain(count: int) -> None:
        nonlocal done, last
        done += count
        if time.monotonic() - last >= PLAIN_INTERVAL:
            last = time.monotonic()
            say(describe())

    yield plain


def say(text: str) -> None:
    """Print a line on standard error; of several ranks the first one speaks."""
    if rank() == 0:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def show_status(text: str) -> Iterator[None]:
    """Say on standard error what takes its time: a spinner on a terminal, one plain line elsewhere.

    Of several ranks the first one speaks.
    """
    console = Console(stderr=True)
    if rank() > 0:
        yield
    elif console.is_terminal and crowd() == 1:
        with console.status(text):
            yield
    else:
        print(text, file=sys.stderr, flush=True)
        yield
