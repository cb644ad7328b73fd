"""Three-way merge of a release: what was changed here, and what others changed on the Hub since.

Both sides come from one version, the base: the one that the folder was last pulled or pushed as, which
`RECORD` in the folder names. What one side changed is kept; what both changed differently is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import ModelCard
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.utils.sha import git_hash

from zoo.errors import ReleaseError
from zoo.files import read_object, write_atomic, write_text
from zoo.hub.fetch import cached_as, client, fetch, is_release_file
from zoo.hub.names import named_repository
from zoo.hub_client import COMMIT, talking
from zoo.release import card, configs, format, provenance

RECORD = ".hub.json"
"""In a release's folder: the commit that it was last pulled or pushed as, by `org/name@branch`."""

VERSION = re.compile(r"v([1-9][0-9]*)")
"""The tags that pushes make."""

Contents = Mapping[str, Path | bytes]
_ABSENT = object()
_MERGED = (format.CONFIG, format.METRICS, format.CARD)  # key by key; of other files one side's is taken
_CHECKED = ("library_name", "pipeline_tag", "datasets", "base_model", "model-index")
"""Metadata of a card that have to follow from the release's own files, see `card.check_card`."""


class Snapshot(NamedTuple):
    """What a repository holds at one commit: of each file its SHA-256 if it is large, else git's SHA-1."""

    repo_id: str
    commit: str
    hashes: Mapping[str, str]
    private: bool


def snapshot(repo_id: str, revision: str, token: str | bool | None) -> Snapshot | None:
    """Ask what a repository holds; None where it has no such revision.

    Raises:
        ReleaseError: when there is no such repository, or the Hub cannot be asked.
    """
    with talking(named_repository(repo_id), ReleaseError):
        try:
            info = client(token).model_info(repo_id, revision=revision, files_metadata=True)
        except RevisionNotFoundError:
            return None
        files = ((file.rfilename, file.lfs, file.blob_id) for file in info.siblings or ())
        hashes = {name: str(lfs.sha256 if lfs else blob) for name, lfs, blob in files}
    return Snapshot(repo_id, str(info.sha), hashes, bool(info.private))


def differing(contents: Contents, there: Snapshot) -> list[str]:
    """Return the names of the release's files that are not the same on the Hub, or on one side only."""
    here = _hashes(contents, there)
    return sorted(
        name
        for name in {*contents, *filter(is_release_file, there.hashes)}
        if here.get(name) != there.hashes.get(name)
    )


def _hashes(contents: Contents, *like: Snapshot) -> dict[str, str]:
    """Return the hash of each file, of the kind that the Hub has of it."""
    found = {}
    for name, content in contents.items():
        known = next((each.hashes[name] for each in like if name in each.hashes), "")
        if isinstance(content, Path) and len(known) != 40:
            found[name] = format.sha256(content)
            continue
        data = content if isinstance(content, bytes) else content.read_bytes()
        found[name] = git_hash(data) if len(known) == 40 else hashlib.sha256(data).hexdigest()
    return found


def branch_of(revision: str | None) -> str:
    """Return the branch that a revision belongs to: versions and commits are taken for those of `main`."""
    fixed = revision is None or VERSION.fullmatch(revision) or COMMIT.fullmatch(revision)
    return "main" if fixed or revision is None else revision


def base_of(folder: Path, repo_id: str, branch: str) -> str | None:
    """Return the commit that a folder was last pulled or pushed as, None where nothing records one."""
    if cached := cached_as(folder):
        return cached[1] if cached[0] == repo_id else None
    record = read_object(folder / RECORD)
    found = record.get(f"{repo_id}@{branch}") or record.get(f"{repo_id}@main")
    return found if isinstance(found, str) and COMMIT.fullmatch(found) else None


def note_base(folder: Path, repo_id: str, branch: str, commit: str) -> None:
    """Record that a folder now is what a branch of the repository holds at a commit."""
    record = {**read_object(folder / RECORD), f"{repo_id}@{branch}": commit}
    write_text(folder / RECORD, json.dumps(record, indent=2) + "\n")


def merge(folder: Path, contents: Contents, base: Snapshot | None, theirs: Snapshot, **options: Any) -> None:
    """Take over into a release's folder what others changed on the Hub since `base`.

    Evaluations of the same weights are joined, and so are configuration, notes and metadata of the card.
    Figures of weights that this release replaces stay with their own version. A licence that somebody wrote
    into the card becomes the release's.

    Args:
        folder: of the release; it may be changed.
        contents: what a push of it would send.
        base: what both sides come from; None where that is not known: then they may not contradict.
        theirs: what the repository holds now.
        options: of `fetch`, token and cache.

    Raises:
        ReleaseError: naming what both sides changed, and both versions; then the folder is as it was.
    """
    where = theirs.repo_id

    def conflict(what: str, here: object, there: object) -> ReleaseError:
        since = f"since {base.commit[:7]}" if base else "and nothing records which version this comes from"
        return ReleaseError(
            f"{named_repository(where)}: {what} is {_short(there)} there at {theirs.commit[:7]} and "
            f"{_short(here)} in {folder}, {since}. Nothing was changed: make both the same, or push with "
            f'base="{theirs.commit}" (--base) for yours to replace theirs'
        )

    def state_of(side: Snapshot) -> tuple[dict[str, Any], list[str], list[str]]:
        return _state(fetch(where, side.commit, weights=False, **options), dict(side.hashes), where)

    old, old_text, _ = state_of(base) if base else ({}, [], [])
    there, text, rendered = state_of(theirs)
    ours, our_text, _ = _state(folder, _hashes(contents, theirs, *([base] if base else [])), where)
    if text not in (old_text, our_text, rendered):
        raise conflict(f"{format.CARD} outside its notes", "written by zoo", "written by hand")
    if old:  # what zoo leaves out when it writes a card anew is removed on the Hub alone
        for part in ("metadata", "tags"):
            kept = {key: value for key, value in old["card"][part].items() if key not in _CHECKED}
            ours["card"][part] = {**kept, **ours["card"][part]}
    _join_evaluations(old, ours, there, conflict)
    merged = _three_way("", old, ours, there, conflict)
    for key in _CHECKED:
        if key in merged["card"]["metadata"]:
            raise conflict(f"{key} of {format.CARD}", "as the record says", merged["card"]["metadata"][key])
    new = [name for name, found in merged["files"].items() if ours["files"].get(name) != found]
    source = fetch(where, theirs.commit, weights=format.WEIGHTS in new, **options)
    for name in new:
        write_atomic(folder / name, partial(shutil.copyfile, source / name))
    for name in ours["files"].keys() - merged["files"].keys():
        (folder / name).unlink()
    _write(folder, merged, where)


def _state(folder: Path, hashes: dict[str, str], repo_id: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return what is compared of one side.

    Returns:
        As nested dicts `config` and `metrics`, its evaluations by what they measure; of the card the `notes`,
        and the `metadata` and `tags` beside what zoo writes; and `files`, the hash of each other file. Then
        the card's words around the notes, and those that zoo writes there.
    """
    config, metrics = configs.read_config(folder), format.read_metrics(folder)
    config["zoo"].pop(format.HASHED[format.IMAGES], None)  # follows from the file
    metrics["evaluations"] = {_measured(entry): entry for entry in metrics["evaluations"]}
    written = ModelCard(card.addressed(format.read_text(folder / format.CARD), repo_id))
    own = ModelCard(card.addressed(card.render(folder, config), repo_id))
    text, rendered = (card.NOTES.sub(r"\1\3", each.text).split() for each in (written, own))
    found, expected = (dict(each.data.to_dict()) for each in (written, own))  # type: ignore[no-untyped-call]
    license = config["pretrained_cfg"]["license"]
    said = found.pop("license_name", None) or found.get("license", license)
    if said not in (license, *provenance.license_on_hub(license)):  # changed on the card alone
        config["pretrained_cfg"]["license"] = said
    tags = {*(found.pop("tags", None) or ())} - {*(expected.get("tags") or ())}
    notes = card.NOTES.search(written.text)
    state = {
        "config": config,
        "metrics": metrics,
        "card": {
            "metadata": {k: v for k, v in found.items() if k != "license" and expected.get(k) != v},
            "tags": dict.fromkeys(sorted(tags), True),
            **({"notes": notes[2]} if notes and notes[2].strip() else {}),
        },
        "files": {name: sha for name, sha in hashes.items() if is_release_file(name) and name not in _MERGED},
    }
    return state, text, rendered


def _record(state: Mapping[str, Any]) -> list[Any]:
    """Return all of a side but its card."""
    return [state[part] for part in ("config", "metrics", "files")]


def _measured(entry: Mapping[str, Any]) -> str:
    """Return what tells an evaluation from others, as text."""
    sets = [(entry.get(f"{split}_set") or {}).get("sha256") for split in ("train", "test")]
    what = [entry[key] for key in ("protocol", "data", "split")]
    return json.dumps([*what, entry.get("settings") or {}, entry.get("seed"), *sets], sort_keys=True)


def _join_evaluations(
    old: dict[str, Any], ours: dict[str, Any], there: dict[str, Any], conflict: Any
) -> None:
    """Let evaluations be compared as they should: of the same weights, whatever their date."""
    name = format.WEIGHTS
    mine, new = ours["files"].get(name), there["files"].get(name)
    before = old["files"].get(name) if old else None
    if mine == new:
        for key, entry in ours["metrics"]["evaluations"].items():
            other = there["metrics"]["evaluations"].get(key, {})
            if other.get("metrics") == entry["metrics"]:  # measured again on another day
                there["metrics"]["evaluations"][key] = entry
    elif new == before:
        there["metrics"] = old["metrics"]
    elif mine != before or _record(ours) != _record(old):
        raise conflict(name, f"with sha256 {mine}", f"with sha256 {new}")


def _three_way(where: str, base: Any, ours: Any, theirs: Any, conflict: Any) -> Any:
    """Return what one side changed, of both sides, by key of nested dicts; `_ABSENT` for what was removed."""
    if theirs in (ours, base):
        return ours
    if ours == base:
        return theirs
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        raise conflict(where, ours, theirs)
    old, merged = base if isinstance(base, dict) else {}, {}
    for key in dict.fromkeys([*ours, *theirs]):
        before, here, there = (side.get(key, _ABSENT) for side in (old, ours, theirs))
        merged[key] = _three_way(f"{where}.{key}" if where else key, before, here, there, conflict)
    return {key: value for key, value in merged.items() if value is not _ABSENT}


def _short(value: object) -> str:
    text = "nothing" if value is _ABSENT else value if isinstance(value, str) else json.dumps(value)
    return f'"{text}"' if len(text) <= 100 else f'"{text[:100]}..."'


def _write(folder: Path, merged: dict[str, Any], repo_id: str) -> None:
    """Write what was merged, each file in one step: stopped in between, a repetition finishes."""
    metrics = {**merged["metrics"], "evaluations": [*merged["metrics"]["evaluations"].values()]}
    write_text(folder / format.METRICS, format.to_json(metrics))
    config = merged["config"]
    if (folder / format.IMAGES).exists():  # sent or not
        config["zoo"][format.HASHED[format.IMAGES]] = format.sha256(folder / format.IMAGES)
    write_text(folder / format.CONFIG, format.to_json(config))
    written = ModelCard(card.addressed(card.render(folder, config), repo_id))
    for name, value in merged["card"]["metadata"].items():
        written.data[name] = value
    written.data["tags"] = [*(written.data.get("tags") or []), *merged["card"]["tags"]]
    notes = merged["card"].get("notes", "")
    written.text = card.NOTES.sub(lambda found: f"{found[1]}{notes}{found[3]}", written.text)
    write_text(folder / format.CARD, str(written))
