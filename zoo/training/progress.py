"""What a person sees of a training: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PLAIN_INTERVAL = 10.0  # seconds between lines where there is no terminal


class Reporter(Protocol):
    """Receives the state of the run after each logged interval."""

    def __call__(self, step: int, *, epoch: float, loss: float, lr: float, images_per_second: float) -> None:
        """Show one interval's means."""


@contextmanager
def show_progress(name: str, total: int, start: int) -> Iterator[Reporter]:
    """Yield a reporter for a run of `total` steps that begins at `start`; writes to standard error."""
    console = Console(stderr=True)
    began = time.monotonic()

    def remaining(step: int) -> timedelta:
        per_step = (time.monotonic() - began) / max(step - start, 1)
        return timedelta(seconds=round(per_step * (total - step)))

    def describe(epoch: float, loss: float, lr: float, images_per_second: float) -> str:
        return f"epoch {epoch:.1f}  loss {loss:.3f}  lr {lr:.2g}  {images_per_second:,.0f} images/s"

    if console.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}  {task.fields[text]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(name, total=total, completed=start, text="")

            def on_terminal(
                step: int, *, epoch: float, loss: float, lr: float, images_per_second: float
            ) -> None:
                text = f"{describe(epoch, loss, lr, images_per_second)}  {remaining(step)} left"
                bar.update(task, completed=step, text=text)

            yield on_terminal
        return

    last = began

    def plain(step: int, *, epoch: float, loss: float, lr: float, images_per_second: float) -> None:
        nonlocal last
        if step < total and time.monotonic() - last < PLAIN_INTERVAL:
            return
        last = time.monotonic()
        text = describe(epoch, loss, lr, images_per_second)
        print(f"{name}: step {step}/{total}  {text}  {remaining(step)} left", file=sys.stderr, flush=True)

    yield plain
