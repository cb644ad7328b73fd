"""What a person sees of a training on standard error: a bar on a terminal, plain lines elsewhere."""

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

Report = Callable[[Mapping[str, float]], None]
"""Receives each row of metrics.jsonl as it is written."""


@contextmanager
def show_progress(name: str, total: int, start: int) -> Iterator[Report]:
    """Yield a reporter for a run of `total` steps that begins at `start`."""
    began = time.monotonic()
    measured = ""  # the newest kNN or validation accuracy
    with _bar(name, total, start) as show:

        def report(row: Mapping[str, float]) -> None:
            nonlocal measured
            for key, called in (("knn_accuracy", "kNN"), ("validation_accuracy", "validation")):
                if key in row:
                    measured = f"{called} {row[key]:.1f} %"
                    return
            step = int(row["step"])
            middle = measured or f"lr {row['lr']:.2g}"  # both would not fit into 80 columns beside the bar
            epochs = row["epoch"] * total / step
            text = (
                f"epoch {row['epoch']:.1f}/{epochs:.0f}  loss {row['loss']:.3f}  {middle}  "
                f"{row['images_per_second']:,.0f} images/s  {_left(began, step - start, total - step)} left"
            )
            show(step, text, f"{name}: step {step}/{total}  {text}", step == total)

        yield report


def show_first_step(seconds: float, left: int) -> None:
    """Say how long the first step took, where all that are `left` would take more than a minute.

    The first one is the slowest: workers start in it, kernels are chosen or compiled.
    """
    if seconds * left > 60:
        most = timedelta(seconds=round(seconds * left))
        say(f"the first step took {seconds:.1f} s, start included; {left:,} more take at most {most}")


@contextmanager
def show_images(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with each number of images done; `text` says what is done with them."""
    began, done = time.monotonic(), 0
    say(f"{text}: {total:,} images")
    with _bar("", total) as show:

        def report(count: int) -> None:
            nonlocal done
            done += count
            speed = done / max(time.monotonic() - began, 1e-9)
            left = _left(began, done, total - done)
            line = f"{text}: {done:,} of {total:,} images  {speed:,.0f} images/s  {left} left"
            show(done, line, line, False)

        yield report


@contextmanager
def _bar(title: str, total: int, start: int = 0) -> Iterator[Callable[[int, str, str, bool], None]]:
    """Yield a function of (how many are done, text beside the bar, line without one, print that in any case).

    Without a terminal a line is printed every `PLAIN_INTERVAL` seconds.
    """
    console = Console(stderr=True)
    if console.is_terminal and crowd() == 1:  # several bars would write over each other
        if title:
            console.print(title)
        with Progress(BarColumn(bar_width=12), TextColumn("{task.description}"), console=console) as bar:
            task = bar.add_task("starting", total=total, completed=start)
            yield lambda done, text, *_: bar.update(task, completed=done, description=text)
        return
    last = time.monotonic()

    def plain(_: int, __: str, line: str, always: bool) -> None:
        nonlocal last
        if always or time.monotonic() - last >= PLAIN_INTERVAL:
            last = time.monotonic()
            say(line)

    yield plain


def _left(began: float, done: int, left: int) -> timedelta:
    """Return how long what is left will take at the speed of what is done."""
    return timedelta(seconds=round((time.monotonic() - began) / max(done, 1) * left))


def say(text: str) -> None:
    """Print a line on standard error; of several ranks the first one speaks."""
    if rank() == 0:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def show_status(text: str) -> Iterator[None]:
    """Say on standard error what takes its time: a spinner on a terminal, one plain line elsewhere."""
    console = Console(stderr=True)
    if rank() == 0 and console.is_terminal and crowd() == 1:
        with console.status(text):
            yield
    else:
        say(text)
        yield
