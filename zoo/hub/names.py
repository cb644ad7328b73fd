"""What a name of a release means: a folder, a repository on the Hub, or a shipped release. Imports no torch.

No request is made. A name that means two different releases is refused; `./folder`, `hf-hub:org/name` and
`shipped:name` mean one. `zoo.list_hub` asks the Hub which names an organisation has.
"""

from __future__ import annotations

import importlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal, NamedTuple

from huggingface_hub import HfApi, ModelInfo, constants, get_session, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard_data import model_index_to_eval_results
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from zoo import catalog
from zoo.errors import ReleaseError, did_you_mean, one_line
from zoo.files import is_dir
from zoo.hub_client import REVISION, talking
from zoo.published import PUBLISHED
from zoo.release.schema import LIBRARY

HUB, SHIPPED, TIMM = "hf-hub:", "shipped:", "timm:"
_CONFIG = "config.json"
_PAGE = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/@?#]+/[^/@?#]+?)(?:/tree/([^?#]+?))?/?"
)
"""The address of a repository's page, as browsers copy it."""
_WHAT = {"folder": "folder", "hub": "Hub repository", "shipped": "shipped release"}


@dataclass(frozen=True)
class ModelRef:
    """A resolved model name.

    Attributes:
        kind: what it means.
        target: the folder, the repository's name, or the shipped release's.
        revision: branch, tag or commit of a repository.
    """

    kind: Literal["folder", "hub", "shipped"]
    target: str
    revision: str | None = None

    @property
    def spelling(self) -> str:
        """The name that can mean nothing else."""
        if self.kind == "shipped":
            return f"{SHIPPED}{self.target}"
        if self.kind == "folder":
            return self.target if Path(self.target).is_absolute() else f"./{Path(self.target).as_posix()}"
        if self.target.startswith("timm/") and not self.revision:
            return f"{TIMM}{self.target.removeprefix('timm/')}"
        return f"{HUB}{self.target}" + (f"@{self.revision}" if self.revision else "")

    @property
    def path(self) -> Path | None:
        """The folder of what lies on this machine, None for a repository."""
        if self.kind == "shipped":
            return catalog.release_path(self.target)
        return Path(self.target) if self.kind == "folder" else None

    def __str__(self) -> str:
        return f"{_WHAT[self.kind]} {self.target}" + (f" at {self.revision}" if self.revision else "")


def resolve(name: str | Path, revision: str | None = None, cache_dir: str | Path | None = None) -> ModelRef:
    """Return what a name means.

    Args:
        name: `"./folder"` or a `Path`; `"org/name[@revision]"` or the address of its page; a shipped name;
            `"timm:ARCH.TAG"`; also with the prefixes `hf-hub:` and `shipped:`.
        revision: branch, tag or commit of a repository.
        cache_dir: huggingface_hub's cache, by default its own.

    Raises:
        ReleaseError: when the name can mean nothing, or two different releases; with the nearest names.
    """
    text = str(name)
    found = _explicit(name, revision) or _implicit(text, revision, cache_dir)
    if revision is not None and found.kind != "hub":
        raise ReleaseError(f'revision="{revision}": "{text}" is the {found}, which has no revisions')
    return found


def _explicit(name: str | Path, revision: str | None) -> ModelRef | None:
    """Read a name that says itself what it is."""
    text = str(name)
    if text.startswith((HUB, "hf_hub:")):
        return _repository(text.partition(":")[2], revision)
    if page := _PAGE.fullmatch(text):
        return _repository(page[1] + (f"@{page[2]}" if page[2] else ""), revision)
    if text.startswith(SHIPPED):
        return _shipped(text.removeprefix(SHIPPED))
    if text.startswith(TIMM):
        return ModelRef("hub", _timms_repository(text.removeprefix(TIMM)), revision)
    if isinstance(name, Path) or text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        try:
            return ModelRef("folder", str(Path(text).expanduser()))
        except RuntimeError as error:  # "~" of nobody
            raise ReleaseError(f'folder "{text}": {error}') from None
    return None


def _implicit(text: str, revision: str | None, cache_dir: str | Path | None) -> ModelRef:
    """Read a name by what there is: a folder, a shipped release, a repository in the local cache."""
    here = [ModelRef("folder", text)] if text and is_dir(text) else []
    if catalog.release_path(text):
        here.append(ModelRef("shipped", text))
    if text.partition("@")[0].count("/") == 1:
        try:
            remote = _repository(text, revision if not here else None)
        except ReleaseError:  # a folder may have a name that no repository can have
            if not here:
                raise
        else:
            if not here:
                return remote
            if _config(remote, cache_dir) is not None:
                here.append(remote)
    if not here:
        raise _unknown("release", text)
    configs = [_config(ref, cache_dir) for ref in here]
    if any(config != configs[0] for config in configs):
        both = " or ".join(f'the {ref} ("{ref.spelling}")' for ref in here)
        raise ReleaseError(f'"{text}" can mean {both}; they are not the same release, write which one')
    return here[0]


def _config(ref: ModelRef, cache_dir: str | Path | None) -> object:
    """Return the `config.json` of what a name may mean, None where none is on this machine."""
    file: Path | str | object = ref.path / _CONFIG if ref.path else None
    if ref.kind == "hub":
        file = try_to_load_from_cache(ref.target, _CONFIG, cache_dir=cache_dir, revision=ref.revision)
    try:
        return json.loads(Path(file).read_bytes()) if isinstance(file, str | Path) else None
    except (OSError, ValueError, RecursionError):
        return None


def _repository(text: str, revision: str | None) -> ModelRef:
    """Read `org/name[@revision]`."""
    repo_id, _, named = text.partition("@")
    if revision and named and revision != named:
        raise ReleaseError(f'"{text}" and revision="{revision}" name two revisions, give one')
    at = revision or named or None
    return ModelRef("hub", check_repo_id(repo_id), check_revision(at) if at else None)


def check_repo_id(repo_id: object) -> str:
    """Return the name of a repository.

    Raises:
        ReleaseError: unless it is of the form `org/name`; with the nearest one that is.
    """
    if isinstance(repo_id, str) and _is_repo_id(repo_id):
        return repo_id
    page = _PAGE.fullmatch(str(repo_id))
    text = (page[1] if page else str(repo_id).removeprefix(HUB)).partition("@")[0]
    near = "/".join(re.sub(r"[^\w.]+|_+-|-_+", "-", part).strip("-.") for part in text.split("/"))
    near = re.sub(r"\.{2,}", ".", near.removesuffix(".git"))
    raise ReleaseError(
        f'repository "{repo_id}": expected "org/name" of letters, digits, ".", "_" and "-", at most 96'
        f" characters.{did_you_mean(near, [near]) if _is_repo_id(near) else ''}"
    )


def _is_repo_id(text: str) -> bool:
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1 and text.isascii()


def check_revision(revision: str) -> str:
    """Return the name of a branch, tag or commit.

    Raises:
        ReleaseError: when nothing can be called so.
    """
    if isinstance(revision, str) and REVISION.fullmatch(revision):
        return revision
    raise ReleaseError(f'revision "{revision}": expected a branch, a tag or a commit, e.g. "v1"')


def _shipped(name: str) -> ModelRef:
    if catalog.release_path(name) is None:
        raise _unknown("shipped release", name)
    return ModelRef("shipped", name)


def _timms_repository(name: str) -> str:
    """Return the repository of timm's own weights `ARCH[.TAG]`."""
    timm = importlib.import_module("timm")  # only here: this name is about to be loaded by it
    arch, _, tag = name.partition(".")
    known = timm.list_pretrained(f"{arch}.*") if arch else []
    cfg = timm.get_pretrained_cfg(name) if known and (not tag or name in known) else None
    if cfg is None or not cfg.hf_hub_id:
        near = did_you_mean(name, known or timm.list_pretrained())
        raise ReleaseError(f'timm has no weights "{name}" on the Hub, expected ARCH.TAG.{near}')
    return str(cfg.hf_hub_id) if not cfg.hf_hub_id.endswith("/") else f"{cfg.hf_hub_id}{arch}.{cfg.tag}"


def _unknown(what: str, text: str) -> ReleaseError:
    """Return the error for a name that no release bears, with what else it is, or may have been meant."""
    if text in catalog.list_recipes():
        why = f'its recipe is shipped, its weights are not: "zoo pretrain {text}" makes them'
    elif text in PUBLISHED:
        why = f'its authors publish these weights in their own format: "zoo convert {text}" makes a release'
    elif re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)?", text) and (weights := _timms_weights(text)):
        why = f'timm\'s own weights are called "{TIMM}{weights}"'
    else:
        near = did_you_mean(text, catalog.list_models())
        known = 'found neither a folder nor a shipped release of that name, nor is it "org/name" on the Hub'
        return ReleaseError(f'no {what} "{text}": {known}.{near}', suggests=bool(near))
    return ReleaseError(f'no {what} "{text}": {why}', suggests=True)


def _timms_weights(name: str) -> str:
    timm = importlib.import_module("timm")  # only here, where the answer is an error in any case
    weights = timm.get_pretrained_cfg(name) if timm.is_model_pretrained(name) else None
    return f"{weights.architecture}.{weights.tag}" if weights else ""


def named_repository(repo_id: str, revision: str | None = None) -> str:
    """Return how errors name a repository."""
    return f'Hub repository "{repo_id}"' + (f' at revision "{revision}"' if revision else "")


class HubRelease(NamedTuple):
    """A release on the Hub, as its card's metadata describe it; what they do not say is empty.

    Attributes:
        repo_id: the repository, `"org/name"`, which `zoo.load` takes.
        objective: the objective's name.
        data: the data set of the figure.
        accuracy: the card's first accuracy in percent and its protocol, e.g. `"93.78 knn"`.
        updated: the day of the last commit.
        private: whether a token is needed.
    """

    repo_id: str
    objective: str
    data: str
    accuracy: str
    updated: date | None
    private: bool


def list_hub(org: str, *, token: str | bool | None = None) -> list[HubRelease]:
    """Return the releases of this project that `org` has on the Hub, sorted by name.

    They are found by the tag `contrastive-zoo` of their cards. Private ones are among them when the token
    opens them.

    Raises:
        ReleaseError: when `org` can be no name on the Hub, or the Hub cannot be asked.
    """
    check_repo_id(f"{org}/name")
    with talking(f'Hub namespace "{org}"', ReleaseError):
        # without a network this fails at once, and the listing only after six tries
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        models = HfApi(token=token, library_name=LIBRARY).list_models(
            author=org, filter=LIBRARY, expand=["cardData", "lastModified", "model-index", "private"]
        )
        return sorted(map(_described, models))


def _described(model: ModelInfo) -> HubRelease:
    tags = getattr(model.card_data, "tags", None)
    tags = tags if isinstance(tags, list) and LIBRARY in tags else [LIBRARY]
    objective = tags[tags.index(LIBRARY) + 1 :][:1]  # as release/card.py writes them
    results = getattr(model.card_data, "eval_results", None) or []
    if not results and model.model_index:  # the Hub keeps it apart from the rest of the metadata
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # a card that others wrote
            _, results = model_index_to_eval_results(model.model_index)  # type: ignore[arg-type]
    first = next((result for result in results if result.metric_type == "accuracy"), None)
    accuracy = f"{first.metric_value} {str(first.dataset_config).split(' ')[0]}" if first else ""
    shown = (model.id, [*objective, ""][0], first.dataset_name if first else "", accuracy)
    repo_id, name, data, figure = (one_line(str(text))[:80] for text in shown)
    updated = model.last_modified.date() if model.last_modified else None
    return HubRelease(repo_id, name, data, figure, updated, bool(model.private))
