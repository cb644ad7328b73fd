"""Three-way merge of a release: what changed in its folder, and what on the Hub, since their common version.

What one side changed is kept, what both changed differently is refused. Compared are whole files, but of
`metrics.json` the evaluations, and of the card the notes and the metadata that zoo does not write.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import ModelCard

from zoo.errors import ReleaseError
from zoo.files import read_object, write_atomic, write_text
from zoo.hub.fetch import TENSORS, folder_of, release_files
from zoo.hub.names import ModelRef, cached_commit
from zoo.release import card, format, provenance

_RECORD = ".hub.json"  # in a release's folder: the commit last pulled or pushed, by `org/name@branch`
_READ = {*TENSORS, format.CONFIG, format.METRICS, format.CARD}  # otherwise than by hashing the file
_DERIVED = {"library_name", "pipeline_tag", "datasets", "base_model", "model-index"}  # of a card's metadata


class _Side(NamedTuple):
    """What is compared of one side: by name or key, what is there; and the card's words outside the notes."""

    files: dict[str, Any]  # their SHA-256; of config.json and metrics.json the content
    evaluations: dict[str, Any]
    card: dict[str, Any]  # the notes, and metadata other than zoo writes
    text: list[str]
    rendered: list[str]  # as zoo writes it


def base_of(folder: Path, repo_id: str, branch: str) -> str | None:
    """Return the commit that a folder was last pulled or pushed as, None where nothing records one."""
    if cached := cached_commit(folder):
        return cached[1] if cached[0] == repo_id else None
    record = read_object(folder / _RECORD)
    return record.get(f"{repo_id}@{branch}") or record.get(f"{repo_id}@main")


def note_base(folder: Path, repo_id: str, branch: str, commit: str) -> None:
    """Record the commit that a folder was pulled or pushed as."""
    record = {**read_object(folder / _RECORD), f"{repo_id}@{branch}": commit}
    write_text(folder / _RECORD, json.dumps(record, indent=2) + "\n")


def merge(folder: Path, repo_id: str, base: str | None, theirs: str, **options: Any) -> None:
    """Take over into a release's folder what others changed in a repository between two commits.

    Without a base, which both sides come from, nothing may contradict. Figures of weights that this release
    replaces stay with their own version. A licence that somebody wrote into the card becomes the release's.
    Options are those of `folder_of`.

    Raises:
        ReleaseError: naming what both sides changed, and both versions; then the folder is as it was.
    """

    def conflict(what: str) -> ReleaseError:
        since = f"since {base[:7]}" if base else "and nothing records which version this comes from"
        return ReleaseError(
            f'Hub repository "{repo_id}": {what} is another one there, at {theirs[:7]}, than in {folder}, '
            f'{since}. Nothing was changed: make both the same, or replace theirs: base="{theirs}" (--base)'
        )

    def fetched(commit: str, weights: bool = False) -> Path:
        return folder_of(ModelRef("hub", repo_id, commit), weights=weights, **options)

    new, found = _read(fetched(theirs), repo_id), _read(folder, repo_id)
    old = _read(fetched(base), repo_id) if base else _Side({}, {}, {}, [], [])
    if new.text not in (old.text, found.text, new.rendered):  # written by hand
        raise conflict(f"{format.CARD} outside its notes")
    # zoo leaves others' metadata out when it writes a card anew: only on the Hub they can be removed
    others = {key: value for key, value in old.card.items() if key not in _DERIVED | {"notes"}}
    ours = found._replace(card=others | found.card)
    before, mine, other = (side.files.get(format.WEIGHTS) for side in (old, ours, new))
    if other == before != mine:  # the weights here are new
        new = new._replace(evaluations=old.evaluations)
    elif mine != other and (ours.files, ours.evaluations) != (old.files, old.evaluations):
        raise conflict(format.WEIGHTS)
    parts: list[dict[str, Any]] = []
    for was, here, there in zip(old[:3], ours[:3], new[:3], strict=True):
        parts.append({})
        for key in {**here, **there}:
            values = [side.get(key) for side in (was, here, there)]
            if values[2] not in values[:2] and (values[0] != values[1] or key in _DERIVED):
                raise conflict(key)
            if (chosen := values[2] if values[0] == values[1] else values[1]) is not None:
                parts[-1][key] = chosen
    files, evaluations, metadata = parts
    if parts != [*found[:3]]:
        names = {*files, *found.files} - {format.CONFIG, format.METRICS}
        changed = [name for name in names if files.get(name) != found.files.get(name)]
        source = fetched(theirs, format.WEIGHTS in changed)
        for name in changed:
            if name in files:
                write_atomic(folder / name, partial(shutil.copyfile, source / name))
            else:
                (folder / name).unlink()
        # each in one step: stopped in between, a repetition finishes
        metrics = {**files[format.METRICS], "evaluations": [*evaluations.values()]}
        write_text(folder / format.METRICS, format.to_json(metrics))
        config, images = files[format.CONFIG], folder / format.IMAGES
        if images.exists():
            config["zoo"][format.HASHED[format.IMAGES]] = format.sha256(images)
        write_text(folder / format.CONFIG, format.to_json(config))
        written = ModelCard(card.addressed(card.render(folder, config), repo_id))
        notes, tags = metadata.pop("notes", ""), metadata.pop("tags", [])
        for key, value in metadata.items():
            written.data[key] = value
        written.data["tags"] = [*(written.data.get("tags") or []), *tags]
        written.text = card.NOTES.sub(lambda match: f"{match[1]}{notes}{match[3]}", written.text)
        write_text(folder / format.CARD, str(written))


def _read(folder: Path, repo_id: str) -> _Side:
    config, metrics = format.read_config(folder), format.read_metrics(folder)
    written = ModelCard(card.addressed(format.read_text(folder / format.CARD), repo_id))
    own = ModelCard(card.addressed(card.render(folder, config), repo_id))
    data, expected = (dict(each.data.to_dict()) for each in (written, own))  # type: ignore[no-untyped-call]
    license, stated = config["pretrained_cfg"]["license"], data.pop("license", None)
    stated = data.pop("license_name", stated)
    if stated not in (None, license, *provenance.license_on_hub(license)):  # changed on the card alone
        config["pretrained_cfg"]["license"] = stated
    hashes = {name: config["zoo"].get(format.HASHED[name]) for name in TENSORS}
    files = {name: sha for name, sha in hashes.items() if sha}
    files |= {name: format.sha256(file) for name, file in release_files(folder).items() if name not in _READ}
    config["zoo"].pop(format.HASHED[format.IMAGES], None)  # they are not always sent
    evaluations = {}
    for entry in metrics.pop("evaluations"):
        sets = [(entry.get(f"{split}_set") or {}).get("sha256") for split in ("train", "test")]
        what = [entry.get(key) for key in ("protocol", "data", "split", "settings", "seed")]
        evaluations[json.dumps([*what, *sets], sort_keys=True)] = entry
    tags = sorted({*(data.pop("tags", None) or ())} - {*(expected.get("tags") or ())})
    metadata = {key: value for key, value in data.items() if expected.get(key) != value}
    notes = card.NOTES.search(written.text)
    metadata |= {"notes": notes[2]} if notes and notes[2].strip() else {}
    metadata |= {"tags": tags} if tags else {}
    text, rendered = (card.NOTES.sub(r"\1\3", each.text).split() for each in (written, own))
    files |= {format.CONFIG: config, format.METRICS: metrics}
    return _Side(files, evaluations, metadata, text, rendered)
