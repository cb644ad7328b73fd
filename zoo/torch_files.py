"""Files of `torch.save`, looked at before torch reads them: what its reader obeys and no weights need."""

from __future__ import annotations

import mmap
import zipfile
from pathlib import Path

from zoo.errors import ReleaseError

_LARGEST_INDEX = 64 << 20  # bytes of a file's pickle, which says where the tensors are; a kilobyte for each


def check_archive(file: Path) -> None:
    """Refuse what a few bytes of a zip archive can fill the memory with; `torch.save` writes none of it.

    Raises:
        ReleaseError: for compressed entries, and pickles that ask for more than tensors.
    """
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ReleaseError(f"{file}: a compressed archive, expected a file that torch.save wrote")
        for entry in archive.infolist():
            if entry.filename.lower().endswith("data.pkl"):  # torch ignores the case
                if entry.file_size > _LARGEST_INDEX:
                    raise ReleaseError(f"{file}: its list of tensors has {entry.file_size:,} bytes")
                refuse_bytearrays(archive.read(entry), file)


def refuse_bytearrays(data: bytes | mmap.mmap, file: Path) -> None:
    """Refuse a pickle that asks for `bytearray(2**33)`: 100 bytes that fill gigabytes, and torch obeys.

    A pickle that torch reads names what it calls in lines of plain text; no weights need this one.

    Raises:
        ReleaseError: naming the file.
    """
    if data.find(b"bytearray\n") >= 0:
        raise ReleaseError(
            f'{file}: it asks for "builtins.bytearray", with which a few bytes can fill the memory; no '
            "weights need it"
        )
