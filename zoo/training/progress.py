"""Progress lines and bars on standard error."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import parent_process

from zoo.errors import rank_and_size

PLAIN_INTERVAL = 10.0  # seconds between lines where there is no terminal

Report = Callable[[Mapping[str, float]], None]  # receives each row of metrics.jsonl as it is written


@contextmanager
def show_progress(name: str, total: int, start: int) -> Iterator[Report]:
    """Yield a reporter for a run of `total` steps that begins at `start`."""
    with _bar(f"{name}: step", total, start) as show:

        def report(row: Mapping[str, float]) -> None:
            if "loss" in row:  # a row of training, not of evaluation
                step, epochs = int(row["step"]), row["epoch"] * total / row["step"]
                text = f"epoch {row['epoch']:.1f}/{epochs:.0f}  loss {row['loss']:.3f}  lr {row['lr']:.2g}"
                show(step, f"{text}  {row['images_per_second']:,.0f} images/s")

        yield report


def show_first_step(seconds: float, left: int) -> None:
    """Print how long the first, slowest step took, if the `left` steps would take more than a minute."""
    if seconds * left > 60:
        most = timedelta(seconds=round(seconds * left))
        say(f"the first step took {seconds:.1f} s, start included; {left:,} more take at most {most}")


@contextmanager
def show_images(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of images in each finished batch; `text` names the work."""
    began, done = time.monotonic(), 0
    say(f"{text}: {total:,} images")
    with _bar(f"{text}: image", total) as show:

        def report(count: int) -> None:
            nonlocal done
            done += count
            show(done, f"{done / max(time.monotonic() - began, 1e-9):,.0f} images/s")

        yield report


@contextmanager
def _bar(title: str, total: int, start: int = 0) -> Iterator[Callable[[int, str], None]]:
    """Yield a function of (number done, text) that prints a line, on a terminal in place of the last one."""
    began = last = time.monotonic()
    alone = rank_and_size()[1] == 1 and parent_process() is None  # several would overwrite each other's lines
    terminal = sys.stderr.isatty() and alone

    def show(done: int, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last >= (0.2 if terminal else PLAIN_INTERVAL):
            last, rate = now, (now - began) / max(done - start, 1)
            left = timedelta(seconds=round(rate * (total - done)))
            end = "\r" if terminal and done < total else "\n"
            say(f"{title} {done}/{total}  {text}  {left} left", end)

    yield show


def say(text: str, end: str = "\n") -> None:
    """Print a line on standard error, on rank 0 only."""
    if rank_and_size()[0] == 0:
        print(text, file=sys.stderr, flush=True, end=end)
