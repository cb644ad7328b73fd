"""The folder that is given for data: refused, before anything is fetched, where nothing in it is read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from zoo.config import plain_kind
from zoo.data.config import DataConfig, Folder, HubDataset, ListFiles, TorchvisionSource
from zoo.data.embedded import reads_folder
from zoo.data.recognition import as_setting, as_spec, holds, is_archive, own_image, recognised
from zoo.data.spec import is_spec, parse_data_spec
from zoo.errors import DataError, ZooError
from zoo.files import is_dir

_DOWNLOADED = [TorchvisionSource(kind=kind) for kind in ("cifar10", "cifar100", "fashion_mnist")]


def require_use(configs: Iterable[DataConfig], root: str | Path | None) -> None:
    """Make sure that some of the data can lie in the folder that was given for them.

    Args:
        configs: of the data, which share the folder.
        root: the command line's `--data`.

    Raises:
        DataError: saying what would be read instead, and how what lies in the folder is given; for a spec in
            place of a folder, saying how a recipe has the same; for what names no folder at all.
    """
    configs = list(configs)
    if root is None or not configs:
        return
    if not isinstance(root, str | Path):
        raise DataError(f"data: found {plain_kind(root)}, expected a folder (str or Path)")
    if not is_dir(root) and _is_spec(root, configs):
        raise DataError(_in_place_of_a_spec(str(root)))
    unused = [_unused(config, Path(root)) for config in configs]
    if not all(unused):
        return
    instead = unused[0]
    if not is_dir(root):
        raise DataError(f'data: no folder "{root}", and none is read: {instead}')
    told = f'data: found the folder "{root}", of which nothing would be read: {instead}'
    found, image = recognised(Path(root)), own_image(Path(root))
    if image is not None and (found is None or found[1] != Path(root)):
        told += _own(image.relative_to(root))
    elif found is not None:
        source, folder = found
        setting = as_setting(source)
        if folder != Path(root):
            setting = f"--data {shlex.quote(str(folder))} {setting}"
        told += f". For the images there a recipe has {setting}"
        if spec := as_spec(DataConfig(source=source), folder):
            told += f", a command that takes other data than a release's own {spec}"
    raise DataError(told)


def _unused(config: DataConfig, root: Path) -> str:
    """Say what is read in place of anything in the folder; '' where something in it can be."""
    source = config.source
    if not reads_folder(config):
        if isinstance(source, HubDataset):
            return f"the source of these data is {source.repo} on the Hub: leave --data out"
        return "the source of these data is digits, which come with scikit-learn: leave --data out"
    if isinstance(source, TorchvisionSource) and source.download and _is_of_others(root, source):
        return (
            f"the source of these data is {source.kind}, which is not there and would be downloaded into it: "
            "for that give another folder"
        )
    return ""


def _is_of_others(root: Path, source: TorchvisionSource) -> bool:
    """Whether a folder has the images of another source and not this one's."""
    if holds(root, source):
        return False
    if found := recognised(root):
        other, folder = found
        # a folder of several archives is what torchvision's own users have; one inside another's is a mistake
        if isinstance(other, TorchvisionSource):
            return is_archive(root, other)
        if folder == root:
            return True
    return not any(holds(root, each) for each in _DOWNLOADED) and own_image(root) is not None


def _own(image: Path) -> str:
    """Say how images of one's own are given that lie as no source reads them."""
    lists = ListFiles(train="FILE", test="FILE")
    return (
        f'. It has images of its own, e.g. "{image}": a recipe reads such in train/CLASS/ and val/CLASS/ '
        f"with {as_setting(Folder())}, where train and test say other names than those two, or by lists of "
        f'lines "path label" with {as_setting(lists)}; where a spec is taken, that is folder:DIR or '
        "list:DIR?train=FILE&test=FILE"
    )


def _is_spec(root: str | Path, configs: Sequence[DataConfig]) -> bool:
    """Whether something was meant for a spec that is no folder yet.

    A bare kind is one, unless it is that of the data themselves: a folder of its name is made for them. So is
    one for a `Path`, as which the folder of a spec arrives.
    """
    text = str(root)
    if not is_spec(text) or ":" in text or "?" in text:
        return is_spec(text)
    read = [config for config in configs if reads_folder(config)] or configs
    return not isinstance(root, Path) and any(config.source.kind != text for config in read)


def _in_place_of_a_spec(text: str) -> str:
    """Say how a recipe has what a spec names, where a folder alone is taken."""
    told = f'data: no folder "{text}": that is a spec, and here only a folder is taken; one of that name is '
    told += f"written {shlex.quote(f'./{text}')}"
    try:
        config, folder = parse_data_spec(text)
    except ZooError:
        return told
    place = "" if folder is None else f"--data {shlex.quote(str(folder))} "
    return f"{told}. A recipe reads those images with {place}{as_setting(config.source)}"
