"""Checkpoints that are fetched from their authors, here from a server beside the test."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo.conversion import FAMILIES, PUBLISHED, Published, authors

import zoo
from tests import convert_helpers as made
from zoo.cli import main
from zoo.errors import ReleaseError

NAME = "resnet18.moco_v2_made_here"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()
    handler = partial(Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture
def file(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the authors serve."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.chdir(tmp_path)
    file = made.save(tmp_path / "served" / "made.pth.tar", made.MoCo())
    md5 = hashlib.md5(file.read_bytes()).hexdigest()[:8]
    monkeypatch.setitem(PUBLISHED, NAME, Published(f"{server}/made.pth.tar", "moco", "resnet18", md5))
    return file


def test_a_checkpoint_is_fetched_once_and_converted_by_its_name_alone(file: Path) -> None:
    release = zoo.convert(NAME)
    assert release.path == Path("runs", NAME) and release.name == NAME
    expected = zoo.convert(file, "moco", "other", arch="resnet18").load().state_dict()
    for key, value in release.load().state_dict().items():
        assert torch.equal(value, expected[key])
    assert release.config["zoo"]["dataset"]["name"] == "ImageNet-1k"
    file.unlink()
    assert zoo.convert(NAME, out="again").name == NAME  # of what was fetched before


def test_what_does_not_arrive_is_told_with_the_way_by_hand(file: Path) -> None:
    file.unlink()
    with pytest.raises(
        ReleaseError, match=r"cannot be fetched from http.*404.*zoo convert FILE --family moco"
    ):
        zoo.convert(NAME)


def test_another_file_than_the_authors_name_is_refused(file: Path) -> None:
    file.write_bytes(b"something else")
    with pytest.raises(ReleaseError, match=r"found MD5 .*, expected [0-9a-f]{8}\.\.\. as its authors say"):
        zoo.convert(NAME)


def test_a_file_that_ends_too_early_is_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(url: str, dst: str, *args: Any) -> None:
        Path(dst).write_bytes(b"half")

    monkeypatch.setattr(authors.torch.hub, "download_url_to_file", cut)
    with pytest.raises(ReleaseError, match=r"found 4 bytes, expected .*give the same command again"):
        zoo.convert(NAME)
    assert not list(Path("torch").rglob("*.tar"))


def test_other_names_and_files_without_a_family_are_told_what_is_needed(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReleaseError, match=r'Did you mean "resnet50\.moco_v2_800ep"\?'):
        zoo.convert("resnet50.moco_v2_80ep")
    with pytest.raises(ReleaseError, match=r"whose layout.*--family"):
        zoo.convert(file)
    monkeypatch.setattr("sys.argv", ["zoo", "convert", "nothing"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert 'no file "nothing"' in capsys.readouterr().err


def test_loading_a_published_name_says_how_it_is_fetched() -> None:
    with pytest.raises(ReleaseError, match=r'"zoo convert resnet50\.moco_v2_800ep" makes a release'):
        zoo.load("resnet50.moco_v2_800ep")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints_are_of_architectures_of_their_family(name: str) -> None:
    entry = PUBLISHED[name]
    assert name.startswith(f"{entry.arch}.")
    assert entry.arch in FAMILIES[entry.family].architectures
    assert entry.url.startswith("https://")
    assert entry.md5 == "" or len(entry.md5) == 8
