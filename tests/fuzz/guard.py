"""Sees code that a file brought along and that runs: by audit events, and by what payloads leave behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import CANARY_VARIABLE

CANARY_FILE = "fuzz-canary"  # in the case's folder; no call writes it unless a payload ran
CANARY_MODULE = "zoo_fuzz_canary"

_ALWAYS = frozenset(
    {
        *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.kill"),
        *("subprocess.Popen", "pty.spawn", "shutil.unpack_archive", "webbrowser.open", "ctypes.dlopen"),
        *("pickle.find_class", "cpython.run_file", "code.__new__"),
    }
)
_COMPILING = (
    "/dataclasses.py",
    "/collections/__init__.py",
    "/inspect.py",
    "/typing.py",
    "/typing_extensions.py",
)
_WRITING = frozenset(
    {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"}
)


class Guard:
    """An audit hook. Hooks stay for the life of the process, so it does nothing outside of `watching`."""

    def __init__(self) -> None:
        self._allowed: tuple[str, ...] | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def watching(self, *folders: Path) -> Iterator[None]:
        """Collect in `seen` what happens inside the block; only `folders` may be written to."""
        os.environ.pop(CANARY_VARIABLE, None)
        self.seen = []
        self._allowed = (*tuple(os.path.realpath(folder) for folder in folders), "/dev/null", "/proc/self")
        try:
            yield
        finally:
            self._allowed = None
            for folder in folders:
                if (folder / CANARY_FILE).exists():
                    self.seen.append("a payload made its file")
            if CANARY_VARIABLE in os.environ:
                self.seen.append("a payload set its variable")
            if CANARY_MODULE in sys.modules:
                self.seen.append("a payload's module was imported")
                del sys.modules[CANARY_MODULE]

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._allowed is None:
            return
        allowed, self._allowed = self._allowed, None  # what is done here is no event
        try:
            if self._is_harm(event, arguments, allowed):
                self.seen.append(f"{event} {arguments!r}"[:300])
        finally:
            self._allowed = allowed

    @staticmethod
    def _is_harm(event: str, arguments: tuple[Any, ...], allowed: tuple[str, ...]) -> bool:
        if event in _ALWAYS:
            return True
        if event in ("exec", "compile"):
            name = getattr(arguments[0], "co_filename", None) if event == "exec" else arguments[1]
            return name == "<string>" and not _defines_classes()
        if event == "socket.connect":
            return "127.0.0.1" not in repr(arguments[1])
        if event == "open":
            path, mode, flags = arguments
            writes = bool(set(mode or "") & set("wax+")) or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
            return writes and not _is_below(path, allowed)
        return event in _WRITING and not _is_below(arguments[0], allowed, follow=False)


def _is_below(path: Any, folders: tuple[str, ...], follow: bool = True) -> bool:
    if isinstance(path, int):
        return True  # a file that is open already
    text = os.fsdecode(path)
    folder, name = os.path.split(text)
    real = os.path.realpath(text) if follow else f"{os.path.realpath(folder)}/{name}"
    return any(real == folder or real.startswith(f"{folder}/") for folder in folders)


def _defines_classes() -> bool:
    """Whether dataclasses, named tuples, annotations or an import at work explain a text that is executed."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(_COMPILING) or file.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
