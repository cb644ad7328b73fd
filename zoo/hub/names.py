"""Resolves names of releases. Imports no torch and makes no requests."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from zoo import catalog
from zoo.config import type_name
from zoo.errors import ReleaseError, did_you_mean

if TYPE_CHECKING:
    from zoo.release import Release

_PAGE = re.compile(r"https?://(?:huggingface\.co|hf\.co)/([^/@?#]+/[^/@?#]+?)(?:/tree/([^?#]+?))?/?")
_REPOSITORY = re.compile(  # the revision is a branch, tag or commit
    r"(\w[\w.-]*/[\w.-]+)(?:@((?!.*(?:\.\.|//))\w[\w./+-]*(?<![./])))?", re.ASCII
)
_KINDS = {"folder": "folder", "hub": "Hub repository", "shipped": "shipped release"}


@dataclass(frozen=True)
class ModelRef:
    """A resolved model name: the folder, Hub repository (at a branch, tag or commit) or shipped release."""

    kind: Literal["folder", "hub", "shipped"]
    target: str
    revision: str | None = None
    path: Path | None = None  # the folder, if on this machine

    @property
    def spelling(self) -> str:
        """The unambiguous name; for a folder in the Hub's cache, its repository and commit."""
        path = Path(self.target)
        if self.kind == "folder" and (cached := cached_commit(path)):
            return ModelRef("hub", *cached).spelling
        if self.kind == "folder":
            return self.target if path.is_absolute() else f"./{path.as_posix()}"
        if self.kind == "shipped":
            return f"shipped:{self.target}"
        if self.target.startswith("timm/") and not self.revision:
            return f"timm:{path.name}"
        return f"hf-hub:{self.target}" + (f"@{self.revision}" if self.revision else "")

    def __str__(self) -> str:
        at = f' at revision "{self.revision}"' if self.revision else ""
        return f'{_KINDS[self.kind]} "{self.target}"{at}'


def named(release: Release | str | Path) -> str | Path:
    """Return the name or folder that opens a release: a name is unchanged, an open release gives its own."""
    if isinstance(release, str | Path):
        return release
    if isinstance(path := getattr(release, "path", None), Path):
        return f"shipped:{path.name}" if catalog.is_shipped(path) else path
    raise ReleaseError(f"release: found {type_name(release)}, expected a name, a folder or a Release")


def cached_commit(folder: Path, kind: str = "models") -> tuple[str, str] | None:
    """Return the repository and commit of a folder in huggingface_hub's cache; None for any other folder."""
    snapshot = rf".*/{kind}--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{{40}})(/.*)?"  # data may be in a subfolder
    found = re.fullmatch(snapshot, f"/{folder.as_posix()}")
    return (f"{found[1]}/{found[2]}", found[3]) if found and (kind != "models" or not found[4]) else None


def resolve(name: Release | str | Path, revision: str | None = None) -> ModelRef:
    """Resolve a name to a folder, Hub repository or shipped release; arguments as in `zoo.open`.

    Raises:
        ReleaseError: for an unknown name, with the nearest one, or for a revision of a local release.
    """
    name = named(name)
    text = str(name)
    prefix, _, rest = text.partition(":")
    if page := _PAGE.fullmatch(text):
        found = repository(page[1], page[2] or revision)
    elif prefix in ("hf-hub", "hf_hub"):
        found = repository(rest, revision)
    elif prefix == "timm":
        found = repository(f"timm/{rest}", revision)
    elif prefix == "shipped" and (path := catalog.release_path(rest)):
        found = ModelRef("shipped", rest, path=path)
    elif isinstance(name, Path) or re.match(r"[/~]|\.\.?(/|$)", text) or (text and isdir(text)):
        folder = os.path.expanduser(text)  # noqa: PTH111  # never raises
        found = ModelRef("folder", folder, path=Path(folder))
    elif path := catalog.release_path(text):
        found = ModelRef("shipped", text, path=path)
    elif text.partition("@")[0].count("/") == 1:
        found = repository(text, revision)
    else:
        near = did_you_mean(text, catalog.list_models())
        if text in catalog.list_recipes():
            near = f' Its recipe is shipped: "zoo pretrain {text}" makes them'
        known = 'found neither a folder nor a shipped release of that name, nor is it "org/name" on the Hub'
        raise ReleaseError(f'no release "{text}": {known}.{near}')
    if revision is not None and found.kind != "hub":
        raise ReleaseError(f'revision="{revision}": "{text}" is the {found}, which has no revisions')
    return found


def repository(text: str, revision: str | None = None) -> ModelRef:
    """Parse a repository, `org/name[@revision]`; raise a `ReleaseError` if it is malformed."""
    text = f"{text}@{revision}" if revision else text
    found = _REPOSITORY.fullmatch(text)
    if found is None:
        raise ReleaseError(f'repository "{text}": expected "org/name", or "org/name@" and one revision')
    return ModelRef("hub", found[1], found[2])
