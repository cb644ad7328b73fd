"""Releases trained once for all tests that read them."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from .hub_server import Hub

HUB = Hub()
HUB.set_environment()  # huggingface_hub, which the imports below bring, reads it on import
os.environ["MKL_CBWR"] = "AUTO"  # as the command line has it: else AMD's processors round by memory address

import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

import zoo  # noqa: E402
from tests.hub_helpers import NAME  # noqa: E402
from tests.programs.plain_sweep import draw_nothing  # noqa: E402
from tests.release_helpers import release_of, some_centers, trained_encoder  # noqa: E402
from zoo.objectives.registry import REGISTERED  # noqa: E402
from zoo.recipe import Recipe  # noqa: E402
from zoo.release import Release  # noqa: E402

# Tests' models are tiny: a second thread gains nothing, and costs much where the cores are shared.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

# A shell's background job ignores SIGINT, and `nohup` SIGHUP. Processes that tests start would inherit that,
# but no handler: so the tests go on, and what they start can be stopped.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The same examples each time, however slow the machine is.
settings.register_profile(
    "zoo", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("zoo")

BRIEF = (
    "training.epochs=12",
    "schedule.warmup_epochs=1",
    "training.checkpoint_every=12",
    "training.device=cpu",
)


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is written, once for each file, to ask what is in it."""
    found: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (found.append(self), save(self, *a, **k))[1])
    return found


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An empty Hub for one test, with the client's caches empty too."""
    HUB.reset()
    yield HUB
    HUB.mend()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client give up on an answer after 2 s, and ask again after a hundredth of its usual pauses.

    Those are 1 + 2 + 4 + 8 + 8 s. How often it asks, and what it does then, stays the client's.
    """
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http

    hurried = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: time.sleep(seconds / 100)})
    monkeypatch.setattr(_http, "time", hurried)
    monkeypatch.setattr(file_download, "time", hurried)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 2)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 2)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no host have an address; a client that waits to ask again fails."""
    from huggingface_hub import close_session
    from huggingface_hub.utils import _http

    close_session()  # with the connections that it keeps

    def unknown(host: object, *_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, f"{host}: Name or service not known")

    def waited(seconds: float) -> None:
        pytest.fail(f"the client waits {seconds} s to ask again")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": waited}))
    yield
    close_session()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A release with centers and a picture, made in a moment; read only."""
    folder = tmp_path_factory.mktemp("made") / NAME
    picture = tmp_path_factory.mktemp("pictures") / "curves.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    return release_of(folder, trained_encoder(), centers=some_centers(64), pictures={"curves": picture})


def trained_once(
    name: str, recipe: str, changes: tuple[str, ...], factory: pytest.TempPathFactory
) -> Release:
    """Train a recipe, or wait until another of pytest-xdist's workers has; its release is for all of them."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "releases"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return zoo.pretrain(recipe, out=folder / name, overrides=changes, resume=True)


@pytest.fixture(scope="session")
def paco(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """PaCo on long-tailed digits for a few seconds; read only."""
    return trained_once("paco", "cifar_resnet20.paco_digits_lt50", BRIEF, tmp_path_factory)


@pytest.fixture(scope="session")
def moco(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """MoCo + FT on long-tailed digits for a few seconds; read only."""
    changes = (*BRIEF, "objective.feature_transform.start_epoch=2")
    return trained_once("moco", "cifar_resnet20.moco_v2_ft_digits_lt50", changes, tmp_path_factory)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainings get a picture that is there already: drawing is most of a short one's time."""
    monkeypatch.setattr("zoo.report.finish.draw_pictures", draw_nothing)


@pytest.fixture
def own_objectives() -> Iterator[None]:
    """Let a test register objectives, and forget them."""
    yield
    REGISTERED.clear()
    Recipe.load("cifar_resnet20.paco_digits_lt50")  # the schema follows


@pytest.fixture
def copied(paco: Release, tmp_path: Path) -> Path:
    """A copy of the PaCo release that a test may change."""
    import shutil

    return Path(shutil.copytree(paco.path, tmp_path / "copy"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the record of verified files, here and in the processes that tests start, be no user's own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
