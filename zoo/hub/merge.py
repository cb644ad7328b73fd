"""Three-way merge of a release's folder and its Hub repository, relative to their common version.

What one side changed is kept; what both changed differently is refused. The parts compared are files, single
evaluations in `metrics.json`, and in the card the notes and the metadata that zoo does not write.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelInfo

from zoo.errors import ReleaseError
from zoo.files import write_atomic, write_text
from zoo.hub.fetch import TENSORS, local_folder, release_files
from zoo.hub.names import ModelRef
from zoo.release import Release, card, format, provenance
from zoo.release.schema import identity

_EVALUATION, _CARD = "evaluation ", "README.md: "  # prefixes of parts that are not files
_TEXT, _NOTES, _TAGS = f"{_CARD}text outside the notes", f"{_CARD}notes", f"{_CARD}tags"
_WRITTEN = ("library_name", "pipeline_tag", "datasets", "base_model", "model-index")  # by zoo, in a card
_DERIVED = {_TEXT, *(f"{_CARD}{key}" for key in _WRITTEN)}


def merge(release: Release, repo_id: str, base: str | None, now: ModelInfo, token: str | bool | None) -> None:
    """Merge into a release's folder what others changed between commit `base` and the repository's state now.

    Without `base`, the common version, the two sides must not differ in any part that both have. Evaluations
    of weights that this release replaces are not merged. A licence edited in the card becomes the release's.

    Raises:
        ReleaseError: naming the part that both sides changed, and both versions; the folder is unchanged.
    """
    folder, commit = release.path, str(now.sha)

    def fetched(revision: str, weights: bool = False) -> Path:
        return local_folder(ModelRef("hub", repo_id, revision), token=token, weights=weights)

    def conflict(key: str) -> ReleaseError:
        since = f"changed since {base[:7]}" if base else "no common version is recorded"
        hint = f'nothing was written; make both the same, or replace theirs: base="{commit}" (--base)'
        return ReleaseError(f'{key} differs between "{repo_id}" and {folder} ({since}); {hint}')

    old = _parts(fetched(base), repo_id) if base else {}
    ours, new = _parts(folder, repo_id), _parts(fetched(commit), repo_id)
    stored = {file.rfilename: file.lfs.sha256 for file in now.siblings or () if file.lfs}
    odd = [name for name in TENSORS if stored.get(name, new.get(name)) != new.get(name)]
    if odd and base != commit:  # somebody replaced it without config.json
        raise conflict(odd[0])
    was, here, theirs = (side.get(format.WEIGHTS) for side in (old, ours, new))
    replaced = theirs == was != here  # by new weights on this side
    changed = [key for key in {**old, **ours} if old.get(key) != ours.get(key) and not key.startswith(_CARD)]
    if here != theirs and changed and not replaced:
        raise conflict(format.WEIGHTS)
    merged = {}
    for key in {**old, **ours, **new}:
        was = old.get(key)
        theirs = was if replaced and key.startswith(_EVALUATION) else new.get(key)
        # this side's card may be older than metadata that others added: only an edit on the Hub removes them
        others = key.startswith(_CARD) and key not in {*_DERIVED, _NOTES}
        here = ours.get(key, was if others else None)
        derived = key in _DERIVED and theirs is not None  # zoo would overwrite it
        if theirs not in (was, here) and (here != was or derived):
            raise conflict(key)
        if (chosen := theirs if here == was else here) is not None:
            merged[key] = chosen
    if merged == ours:
        return
    if not release.writable:
        raise ReleaseError(f'{folder}: others changed "{repo_id}", and this folder is read-only; push a copy')
    names = {key for key in {**merged, **ours} if not key.startswith((_EVALUATION, _CARD))}
    names -= {format.CONFIG, format.METRICS}
    changed = [name for name in names if merged.get(name) != ours.get(name)]
    source = fetched(commit, format.WEIGHTS in changed)
    for name in changed:
        if name in merged:
            write_atomic(folder / name, partial(shutil.copyfile, source / name))
        else:
            (folder / name).unlink()
    # each write is atomic: after an interruption, a repetition finishes
    entries = [value for key, value in merged.items() if key.startswith(_EVALUATION)]
    metrics, config = {**merged[format.METRICS], "evaluations": entries}, merged[format.CONFIG]
    write_text(folder / format.METRICS, format.to_json(metrics))
    if (images := folder / format.IMAGES).exists():
        config["zoo"][format.HASHED[format.IMAGES]] = format.sha256(images)
    write_text(folder / format.CONFIG, format.to_json(config))
    written = ModelCard(card.with_repo_id(card.render(folder, config, keep=False), repo_id))
    tags = [*(written.data.get("tags") or []), *merged.get(_TAGS, [])]
    for key, value in merged.items():
        if key.startswith(_CARD) and key not in (_NOTES, _TEXT):
            written.data[key.removeprefix(_CARD)] = value
    written.data["tags"] = tags
    written.text = card.NOTES.sub(lambda found: found[1] + merged.get(_NOTES, "") + found[3], written.text)
    write_text(folder / format.CARD, str(written))


def _parts(folder: Path, repo_id: str) -> dict[str, Any]:
    """Return the parts of a release that are compared, by name; for most files the SHA-256."""
    config, metrics = format.read_config(folder), format.read_metrics(folder)
    texts = format.read_text(folder / format.CARD), card.render(folder, config, keep=False)
    written, own = (ModelCard(card.with_repo_id(text, repo_id)) for text in texts)
    data, expected = (dict(each.data.to_dict()) for each in (written, own))  # type: ignore[no-untyped-call]
    config["pretrained_cfg"]["license"] = provenance.license_of(folder, config)
    parts = {name: config["zoo"].get(format.HASHED[name]) for name in TENSORS}
    for name, file in release_files(folder).items():
        if name not in (*TENSORS, format.CARD):
            parts[name] = format.sha256(file)
    config["zoo"].pop(format.HASHED[format.IMAGES], None)  # images are not always pushed
    for entry in metrics.pop("evaluations"):
        parts[f"{_EVALUATION}{json.dumps(identity(entry), sort_keys=True)}"] = entry
    data["tags"] = sorted({*(data.get("tags") or ())} - {*(expected.pop("tags", None) or ())}) or None
    edited = {key: value for key, value in data.items() if expected.get(key) != value}
    parts |= {f"{_CARD}{key}": edited[key] for key in edited if key not in ("license", "license_name")}
    notes = card.NOTES.search(written.text)
    words, rendered = (card.NOTES.sub(r"\1\3", each.text).split() for each in (written, own))
    parts[_NOTES] = notes[2] if notes and notes[2].strip() else None
    parts |= {_TEXT: words if words != rendered else None, format.CONFIG: config, format.METRICS: metrics}
    return {key: value for key, value in parts.items() if value is not None}
