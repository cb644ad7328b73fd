"""What the name of a release means: a folder, a Hub repository, a shipped release. Imports no torch.

No request is made, but by `list_hub`, which asks the Hub for the names of an organisation.
"""

from __future__ import annotations

import importlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from huggingface_hub import HfApi, ModelInfo, constants, get_session, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard_data import model_index_to_eval_results
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from zoo import catalog
from zoo.config import plain_kind
from zoo.errors import ReleaseError, did_you_mean, one_line
from zoo.files import is_dir, is_file
from zoo.hub.client import REVISION, hub_errors
from zoo.release.schema import LIBRARY

if TYPE_CHECKING:
    from zoo.release import Release

HUB, SHIPPED, TIMM = "hf-hub:", "shipped:", "timm:"
_PAGE = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/@?#]+/[^/@?#]+?)(?:/tree/([^?#]+?))?/?"
)
_KINDS = {"folder": "folder", "hub": "Hub repository", "shipped": "shipped release"}


@dataclass(frozen=True)
class ModelRef:
    """A resolved model name: the folder, Hub repository (at a branch, tag or commit) or shipped release."""

    kind: Literal["folder", "hub", "shipped"]
    target: str
    revision: str | None = None

    @property
    def path(self) -> Path | None:
        """The folder of what is on this machine, None for a repository."""
        if self.kind == "shipped":
            return catalog.release_path(self.target)
        return Path(self.target) if self.kind == "folder" else None

    @property
    def spelling(self) -> str:
        """The name that can mean nothing else; of a folder in the Hub's cache, its repository and commit."""
        if self.kind == "shipped":
            return f"{SHIPPED}{self.target}"
        target, revision = self.target, self.revision
        if self.kind == "folder":
            if (cached := cached_commit(Path(target))) is None:
                return target if Path(target).is_absolute() else f"./{Path(target).as_posix()}"
            target, revision = cached
        if target.startswith("timm/") and not revision:
            return f"{TIMM}{target.removeprefix('timm/')}"
        return f"{HUB}{target}" + (f"@{revision}" if revision else "")

    def __str__(self) -> str:
        at = f' at revision "{self.revision}"' if self.revision else ""
        return f'{_KINDS[self.kind]} "{self.target}"{at}'


def named(release: Release | str | Path) -> str | Path:
    """Return what a release is opened by: a name as it is, and the folder of one that is open."""
    if isinstance(release, str | Path):
        return release
    if isinstance(path := getattr(release, "path", None), Path):
        return f"{SHIPPED}{path.name}" if catalog.is_shipped(path) else path
    raise ReleaseError(
        f"release: found {plain_kind(release)}, expected a name, a folder (str or Path) or a Release"
    )


def cached_commit(folder: Path) -> tuple[str, str] | None:
    """Return the repository and commit of a folder in huggingface_hub's cache; None for any other folder."""
    found = re.fullmatch(r"models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})", "/".join(folder.parts[-3:]))
    return (f"{found[1]}/{found[2]}", found[3]) if found else None


def resolve(
    name: Release | str | Path, revision: str | None = None, cache_dir: str | Path | None = None
) -> ModelRef:
    """Return what a name means; names, revisions and `cache_dir` are those of `zoo.open`.

    Raises:
        ReleaseError: when the name can mean nothing, or two different releases; with the nearest name.
    """
    name = named(name)
    text = str(name)
    prefix, _, rest = text.partition(":")
    if page := _PAGE.fullmatch(text):
        found = repository(page[1] + (f"@{page[2]}" if page[2] else ""), revision)
    elif prefix in ("hf-hub", "hf_hub"):
        found = repository(rest, revision)
    elif prefix == "timm":
        found = ModelRef("hub", _timm_repository(rest), revision)
    elif prefix == "shipped" and catalog.release_path(rest):
        found = ModelRef("shipped", rest)
    elif isinstance(name, Path) or text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        found = ModelRef("folder", str(Path(os.path.expanduser(text))))  # noqa: PTH111  # never raises
    else:
        found = _whatever_exists(text, revision, cache_dir)
    if revision is not None and found.kind != "hub":
        raise ReleaseError(f'revision="{revision}": "{text}" is the {found}, which has no revisions')
    return found


def _whatever_exists(text: str, revision: str | None, cache_dir: str | Path | None) -> ModelRef:
    """Read a name without a prefix, by what exists: all of a folder, shipped release and repository agree."""
    found = [ModelRef("folder", text)] if text and is_dir(text) else []
    found += [ModelRef("shipped", text)] if catalog.release_path(text) else []
    if not found and text.partition("@")[0].count("/") == 1:
        return repository(text, revision)
    configs = [Path(ref.path or "") / "config.json" for ref in found]
    cached = try_to_load_from_cache(text, "config.json", cache_dir=cache_dir) if _is_repo_id(text) else None
    if isinstance(cached, str):
        found.append(ModelRef("hub", text))
        configs.append(Path(cached))
    if not found:
        raise _unknown(text)
    if len({file.read_bytes() if is_file(file) else b"" for file in configs}) > 1:
        both = " or ".join(f'the {ref} ("{ref.spelling}")' for ref in found)
        raise ReleaseError(f'"{text}" can mean {both}; they are not the same release, write which one')
    return found[0]


def repository(text: str, revision: str | None = None) -> ModelRef:
    """Return the repository `org/name[@revision]`; raise a `ReleaseError` for what can be none."""
    repo_id, _, written = text.partition("@")
    at = revision or written or None
    if not _is_repo_id(repo_id):
        near = re.sub(r"[^\w./]+|-{2,}", "-", repo_id.removesuffix(".git"))
        raise ReleaseError(
            f'repository "{repo_id}": expected "org/name" of letters, digits, ".", "_" and "-", at most 96 '
            f"characters.{did_you_mean(near, [near]) if _is_repo_id(near) else ''}"
        )
    if at and (not REVISION.fullmatch(at) or written not in ("", at)):
        raise ReleaseError(f'"{text}", revision "{at}": expected one branch, tag or commit, e.g. "v1"')
    return ModelRef("hub", repo_id, at)


def _is_repo_id(text: str) -> bool:
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1 and text.isascii()


def _timm_repository(name: str) -> str:
    """Return the repository of timm's own weights `ARCH[.TAG]`."""
    timm = importlib.import_module("timm")  # only here: this name is about to be loaded by it
    cfg = timm.get_pretrained_cfg(name) if timm.is_model_pretrained(name) else None
    if cfg is None or not cfg.hf_hub_id:
        near = did_you_mean(name, timm.list_pretrained(f"{name.partition('.')[0]}*"))
        raise ReleaseError(f'timm has no weights "{name}" on the Hub, expected ARCH.TAG.{near}')
    return str(cfg.hf_hub_id) + (f"{cfg.architecture}.{cfg.tag}" if cfg.hf_hub_id.endswith("/") else "")


def _unknown(text: str) -> ReleaseError:
    near = did_you_mean(text, catalog.list_models())
    if text in catalog.list_recipes():
        near = f' Its recipe is shipped: "zoo pretrain {text}" makes them'
    elif re.fullmatch(r"[a-z]\w+(\.\w+)?", text) and importlib.import_module("timm").is_model_pretrained(
        text
    ):
        near = f' Did you mean "{TIMM}{text}"?'
    known = 'found neither a folder nor a shipped release of that name, nor is it "org/name" on the Hub'
    return ReleaseError(f'no release "{text}": {known}.{near}')


class HubRelease(NamedTuple):
    """A release on the Hub, as its card's metadata describe it; what they do not say is empty."""

    repo_id: str  # which `zoo.load` takes
    objective: str
    data: str  # of the figure
    accuracy: str  # the card's first, in percent, and its protocol, e.g. "93.78 knn"
    updated: date | None
    private: bool


def list_hub(org: str, *, token: str | bool | None = None) -> list[HubRelease]:
    """Return the releases of a user or organisation on the Hub whose cards have this project's tag.

    Raises:
        ReleaseError: when `org` can be no name on the Hub, or the Hub cannot be asked.
    """
    repository(f"{org}/name")
    with hub_errors(f'Hub namespace "{org}"', ReleaseError):
        # without a network this fails at once, and the listing only after six tries
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        models = HfApi(token=token, library_name=LIBRARY).list_models(
            author=org, filter=LIBRARY, expand=["cardData", "lastModified", "model-index", "private"]
        )
        return sorted(map(_described, models))


def _described(model: ModelInfo) -> HubRelease:
    tags = getattr(model.card_data, "tags", None)
    objective = tags[tags.index(LIBRARY) + 1 :] if isinstance(tags, list) and LIBRARY in tags else []
    results = getattr(model.card_data, "eval_results", None) or []
    with suppress(KeyError, TypeError, ValueError, AttributeError):  # a card that others wrote
        # the Hub keeps it apart from the rest of the metadata
        results = results or model_index_to_eval_results(model.model_index)[1]  # type: ignore[arg-type]
    first = next((result for result in results if result.metric_type == "accuracy"), None)
    accuracy = f"{first.metric_value} {str(first.dataset_config).split(' ')[0]}" if first else ""
    shown = (model.id, [*objective, ""][0], first.dataset_name if first else "", accuracy)
    repo_id, name, data, figure = (one_line(str(text))[:80] for text in shown)
    updated = model.last_modified.date() if model.last_modified else None
    return HubRelease(repo_id, name, data, figure, updated, bool(model.private))
