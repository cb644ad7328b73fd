"""What a name means: a folder, a repository on the Hub, a shipped release, or one in the own namespace.

Read in this order. A folder, a shipped release and a repository in the local cache are known without the
network; two of them under one name are refused unless they are the same release. Only a name that nothing
local bears is asked of the Hub. Three spellings are never ambiguous: `./folder`, `hf-hub:org/name` and
`shipped:name`. Imports no torch.
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import try_to_load_from_cache

from zoo import catalog, settings
from zoo.errors import ReleaseError, did_you_mean
from zoo.files import is_dir
from zoo.release import hub

Kind = Literal["folder", "hub", "shipped"]
_HUB, _SHIPPED, TIMM = ("hf-hub:", "hf_hub:"), "shipped:", "timm:"
_TIMMS = "timm/"  # the organisation on the Hub that holds timm's own weights
_CONFIG = "config.json"
_PAGE = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/@?#]+/[^/@?#]+?)(?:/tree/([^?#]+?))?/?"
)
"""The address of a repository's page, as browsers copy it."""
_WHAT: dict[Kind, str] = {"folder": "folder", "hub": "Hub repository", "shipped": "shipped release"}


@dataclass(frozen=True)
class Reading:
    """One way to read a name.

    Attributes:
        kind: what it means.
        target: the folder, the repository's name, or the shipped release's.
        revision: branch, tag or commit of a repository.
        cached: the repository's `config.json` in the local cache, if it is there.
        others: how else the name was tried, and what came of it.
    """

    kind: Kind
    target: str
    revision: str | None = None
    cached: Path | None = None
    others: tuple[str, ...] = ()

    @property
    def spelling(self) -> str:
        """The name that can mean nothing else."""
        if self.kind == "hub":
            if self.target.startswith(_TIMMS) and not self.revision:
                return f"{TIMM}{self.target.removeprefix(_TIMMS)}"
            return f"hf-hub:{self.target}" + (f"@{self.revision}" if self.revision else "")
        if self.kind == "shipped":
            return f"{_SHIPPED}{self.target}"
        return self.target if Path(self.target).is_absolute() else f"./{Path(self.target).as_posix()}"

    def __str__(self) -> str:
        revision = f" at revision {self.revision}" if self.revision else ""
        return f"{_WHAT[self.kind]} {self.target}{revision}"

    @property
    def path(self) -> Path | None:
        """The folder of a local reading, else None."""
        if self.kind == "shipped":
            return catalog.release_path(self.target)
        return Path(self.target) if self.kind == "folder" else None

    @property
    def config(self) -> object:
        """What `config.json` holds, or None when there is none to read."""
        file = self.path / _CONFIG if self.path else self.cached
        try:
            return json.loads(file.read_bytes()) if file else None
        except (OSError, ValueError, RecursionError):
            return None


def resolve(name: str | Path, revision: str | None = None, cache_dir: str | Path | None = None) -> Reading:
    """Read a name; no request is made.

    Args:
        name: see the module; a `Path` is a folder. A repository's name may end in `@revision`.
        revision: branch, tag or commit of a repository.
        cache_dir: huggingface_hub's cache, by default its own.

    Raises:
        ReleaseError: when the name can mean nothing, or two different things; with the nearest names.
    """
    text = str(name)
    reading = _explicit(name, revision)
    if reading is None:
        reading = _choose(text, revision, cache_dir)
    if reading.kind != "hub" and revision is not None:
        raise ReleaseError(
            f'revision="{revision}": "{text}" is the {reading}, no Hub repository, it has no revisions'
            + (f'; for the one on the Hub write "hf-hub:{text}"' if hub.is_repo_id(text) else "")
        )
    return reading


def _explicit(name: str | Path, revision: str | None) -> Reading | None:
    text = str(name)
    if text.startswith(_HUB):
        return _repository(text.split(":", 1)[1], revision)
    if page := _PAGE.fullmatch(text):
        return _repository(page[1] + (f"@{page[2]}" if page[2] else ""), revision)
    if text.startswith(_SHIPPED):
        shipped = text.removeprefix(_SHIPPED)
        if catalog.release_path(shipped) is None:
            why = _only_recipe(shipped)
            hint = f": {why}" if why else f".{did_you_mean(shipped, catalog.list_models())}"
            raise ReleaseError(f'no shipped release "{shipped}"{hint}')
        return Reading("shipped", shipped)
    if text.startswith(TIMM):
        return Reading("hub", _timms_repository(text.removeprefix(TIMM)), revision)
    if isinstance(name, Path) or text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        try:
            return Reading("folder", str(Path(text).expanduser()))
        except RuntimeError as error:  # "~" of nobody
            raise ReleaseError(f'folder "{text}": {error}') from None
    return None


def _timms_repository(name: str) -> str:
    """Return the repository of timm's own weights `ARCH[.TAG]`."""
    timm = importlib.import_module("timm")  # only here: this name is about to be loaded by it
    arch, _, tag = name.partition(".")
    known = timm.list_pretrained(f"{arch}.*") if arch else []
    cfg = timm.get_pretrained_cfg(name) if known and (not tag or name in known) else None
    if cfg is None:
        near = did_you_mean(name, known or timm.list_pretrained())
        raise ReleaseError(
            f'timm has no weights "{name}", expected ARCH.TAG.{near}'
            + (f" It has: {', '.join(known)}" if known else "")
        )
    if not cfg.hf_hub_id:
        raise ReleaseError(
            f'timm\'s weights "{name}" are not on the Hub; save timm.create_model("{name}", pretrained=True) '
            "with timm.models.save_for_hf(model, FOLDER), and give that folder"
        )
    return str(cfg.hf_hub_id) if not cfg.hf_hub_id.endswith("/") else f"{cfg.hf_hub_id}{arch}.{cfg.tag}"


def _repository(text: str, revision: str | None) -> Reading:
    """Read `org/name[@revision]`."""
    repo_id, _, named = text.partition("@")
    if revision and named and revision != named:
        raise ReleaseError(f'"{text}" and revision="{revision}" name two revisions, give one')
    at = revision or named or None
    return Reading("hub", hub.check_repo_id(repo_id), hub.check_revision(at) if at else None)


def _choose(text: str, revision: str | None, cache_dir: str | Path | None) -> Reading:
    local: list[Reading] = []
    tried: list[str] = []
    if text and is_dir(text):
        local.append(Reading("folder", text))
    else:
        tried.append(f'no folder "{text}"')
    if "/" not in text and catalog.release_path(text):
        local.append(Reading("shipped", text))
    elif "/" not in text:
        tried.append(f'no shipped release "{text}"')
    try:
        remote = _remote(text, None if local else revision, tried)
    except ReleaseError:
        if not local:
            raise
        remote = None  # a folder may have a name that no repository can have
        tried.append(f'no Hub repository can be called "{text}"')
    if remote and local:
        remote = _cached(remote, cache_dir)
    known = [*local, *([remote] if remote and remote.cached else [])]
    if len(known) > 1:
        _refuse_ambiguous(text, known)
    chosen = known[0] if known else remote
    if chosen is None:
        why = _only_recipe(text) or _authors(text) or _known_to_timm(text)
        if why:
            raise ReleaseError(f'no release "{text}": {why} ({", ".join(tried)})', suggests=True)
        hint = did_you_mean(text, catalog.list_models())
        raise ReleaseError(f'no release "{text}": {", ".join(tried)}.{hint}', suggests=bool(hint))
    tried += [f"the {other} is the same release" for other in known if other is not chosen]
    if remote and remote is not chosen and not remote.cached:
        tried.append(f"the {remote} was not asked for, and is not in the local cache")
    return Reading(chosen.kind, chosen.target, chosen.revision, chosen.cached, tuple(tried))


def _only_recipe(text: str) -> str:
    """Say that a name is a recipe's whose weights are not shipped; '' where it is not."""
    if text not in catalog.list_recipes():
        return ""
    return f'a recipe of that name is shipped, its weights are not: "zoo pretrain {text}" makes them'


def _authors(text: str) -> str:
    """Say that a name is of a checkpoint that its authors publish; '' where it is not."""
    if text not in importlib.import_module("zoo.conversion.fetch").PUBLISHED:
        return ""
    return f'its authors publish these weights in a format of their own: "zoo convert {text}" makes a release'


def _known_to_timm(text: str) -> str:
    """Say what a name is in timm that is no release; '' where it is nothing."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)?", text):
        return ""
    timm = importlib.import_module("timm")  # only here, where the answer is an error in any case
    if timm.is_model_pretrained(text):
        weights = timm.get_pretrained_cfg(text)
        full = f"{weights.architecture}.{weights.tag}" if weights.tag else text
        what = f"that is {'a name' if '.' in text else 'an architecture'} of timm"
        return f"{what}{_shipped_of(text)}; {_use_of_timms(full)}"
    if "." not in text and timm.is_model(text):
        return f"that is an architecture{_shipped_of(text) or ', of which no weights are known'}"
    return ""


def _shipped_of(arch: str) -> str:
    """Say how what is shipped of an architecture is listed; '' where that is nothing."""
    if any(name.startswith(f"{arch}.") for name in (*catalog.list_models(), *catalog.list_recipes())):
        return f', "zoo list {arch}" shows which weights and recipes of it are shipped'
    return ""


def _use_of_timms(name: str) -> str:
    return f'timm\'s own weights are called "{TIMM}{name}" everywhere'


def _remote(text: str, revision: str | None, tried: list[str]) -> Reading | None:
    if "://" in text:
        hub.check_repo_id(text)  # a page's address: the error names the repository in it
    if "/" in text:
        if text.partition("@")[0].count("/") == 1:
            return _repository(text, revision)
        tried.append(f'no Hub repository "org/name" can be called "{text}"')
        return None
    namespace = settings.namespace()
    if namespace is None:
        tried.append(f"no namespace on the Hub to look in ({settings.NAMESPACE_VARIABLE} is not set)")
    elif not hub.is_repo_id(f"{namespace}/{text.partition('@')[0]}"):
        tried.append(f'no Hub repository can be called "{namespace}/{text}"')
    else:
        return _repository(f"{namespace}/{text}", revision)
    return None


def _cached(reading: Reading, cache_dir: str | Path | None) -> Reading:
    file = try_to_load_from_cache(reading.target, _CONFIG, cache_dir=cache_dir, revision=reading.revision)
    found = Path(file) if isinstance(file, str) else None
    return Reading("hub", reading.target, reading.revision, found)


def _refuse_ambiguous(text: str, known: list[Reading]) -> None:
    first = known[0].config
    if first is not None and all(other.config == first for other in known[1:]):
        return
    both = " or ".join(f'the {reading} ("{reading.spelling}")' for reading in known)
    raise ReleaseError(f'"{text}" can mean {both}; they are not the same release, write which one')
