"""Recording what a GPU is told to do as one CUDA graph, which is replayed with a single launch.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from zoo.errors import ZooError, first_line

Replay = Callable[[], None]


def capture(record: Callable[[], None], *generators: torch.Generator) -> Replay:
    """Record a function without running it, and return what replays it.

    It is recorded on the current stream (on one of torch's where that is the default one, which cannot be
    captured): what libraries keep for each stream, such as cuBLAS's workspace, is then that of the steps
    before, and not another graph's, which may be replayed at the same time.

    Args:
        record: touches nothing but tensors on the device; whatever else it reads stays as it was here.
        generators: beside the default one, those that it draws from: a replay draws what they would then.
    """
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    stream = None if before == torch.cuda.default_stream() else before
    for generator in generators:
        graph.register_generator_state(generator)
    gc.collect()  # a graph of something earlier that is destroyed during a capture would break it
    collects = gc.isenabled()
    gc.disable()
    try:
        # other threads may pin memory meanwhile: the loader's
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            record()
    except BaseException:
        # when ending the capture fails too, torch does not come to leaving the capture's stream
        torch.cuda.set_stream(before)
        raise
    finally:
        if collects:
            gc.enable()
    return graph.replay


@contextmanager
def capturing(what: str, kind: type[ZooError]) -> Iterator[None]:
    """Say of a capture that fails in the block what it was of, and why.

    Raises:
        ZooError: of that kind; what memory lacks stays as it is.
    """
    try:
        yield
    except RuntimeError as error:
        cause = _first_of(error)
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from None
        raise kind(
            f"training.cuda_graph: {what} cannot be captured ({_told(cause)}); set it false"
        ) from error


def _first_of(error: RuntimeError) -> RuntimeError:
    """Return what went wrong first: ending a capture that has failed fails again, and hides the reason."""
    while isinstance(error.__context__, RuntimeError):  # anything else was being handled when it happened
        error = error.__context__
    return error


def _told(cause: BaseException) -> str:
    """Say why a capture failed, and in which line of this package."""
    package = str(Path(__file__).parent)
    ours = [
        frame for frame in traceback.extract_tb(cause.__traceback__) if frame.filename.startswith(package)
    ]
    where = f", in {Path(ours[-1].filename).relative_to(package)}:{ours[-1].lineno}" if ours else ""
    return f"{first_line(cause)}{where}"
