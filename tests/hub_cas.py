"""Xet's formats, and the content-addressed store behind the test Hub.

After the public specification, https://huggingface.co/docs/xet. A client cuts files into chunks, sends them
compressed in xorbs, and then a shard that says which chunks make up which file. Hashes are taken as the
client sends them (that they are BLAKE3 trees matters to clients only).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from .hub_http import HubError

NONE, LZ4, BYTE_GROUPS_LZ4 = 0, 1, 2
SHARD_TAG_LENGTH, ENTRY = 32, 48
WITH_VERIFICATION, WITH_METADATA = 1 << 31, 1 << 30
BOOKEND = b"\xff" * 32


def hex_of(raw: bytes) -> str:
    """Write a hash as Xet does: four little-endian 64-bit numbers."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", raw))


def decoded(data: bytes, scheme: int) -> bytes:
    """Return one chunk's content."""
    if scheme == NONE:
        return data
    if scheme not in {LZ4, BYTE_GROUPS_LZ4}:
        raise HubError(400, f"unknown compression scheme {scheme}")
    from lz4 import frame  # every test loads this module, those over Xet alone need the package

    plain: bytes = frame.decompress(data)
    if scheme == LZ4:
        return plain
    # All first bytes of four, then all second ones, ...: float32's exponents side by side compress well.
    whole, start = bytearray(len(plain)), 0
    for place in range(4):
        stop = start + len(range(place, len(plain), 4))
        whole[place::4] = plain[start:stop]
        start = stop
    return bytes(whole)


@dataclass(frozen=True)
class Chunk:
    """Where a chunk lies in its serialized xorb, and what it holds."""

    start: int
    stop: int
    data: bytes = field(repr=False)


def chunks_of(xorb: bytes) -> Iterator[Chunk]:
    """Read a xorb: chunks, and perhaps a footer.

    A chunk has a header of 8 bytes (version 0, size in 3 bytes, scheme, plain size in 3 bytes).
    """
    place = 0
    while place < len(xorb) and xorb[place] == 0:
        size = int.from_bytes(xorb[place + 1 : place + 4], "little")
        plain_size = int.from_bytes(xorb[place + 5 : place + 8], "little")
        stop = place + 8 + size
        data = decoded(xorb[place + 8 : stop], xorb[place + 4])
        if stop > len(xorb) or len(data) != plain_size:
            raise HubError(400, "a chunk is not of the size that its header says")
        yield Chunk(place, stop, data)
        place = stop


@dataclass(frozen=True)
class Term:
    """Chunks [first, last) of a xorb: a stretch of a file."""

    xorb: str
    first: int
    last: int


@dataclass
class Cas:
    """The content-addressed store: serialized xorbs and their chunks, files as terms."""

    xorbs: dict[str, bytes] = field(default_factory=dict)
    chunks: dict[str, list[Chunk]] = field(default_factory=dict)
    files: dict[str, list[Term]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # SHA-256 -> file hash

    def content(self, file: str) -> bytes:
        return b"".join(c.data for t in self.files[file] for c in self.chunks[t.xorb][t.first : t.last])


def shard_files(shard: bytes) -> Iterator[tuple[str, list[Term], list[int], str | None]]:
    """Read a shard's first section: file hash, terms, their sizes, and the SHA-256 where it is told."""
    place = SHARD_TAG_LENGTH + 16  # tag, version, size of the footer

    def entry() -> bytes:
        nonlocal place
        place += ENTRY
        if place > len(shard):
            raise HubError(400, "the shard ends in the middle of an entry")
        return shard[place - ENTRY : place]

    while not (header := entry()).startswith(BOOKEND):
        flags, number = struct.unpack("<II", header[32:40])
        terms, sizes = [], []
        for _ in range(number):
            raw = entry()
            _, size, first, last = struct.unpack("<4I", raw[32:])
            terms.append(Term(hex_of(raw[:32]), first, last))
            sizes.append(size)
        if flags & WITH_VERIFICATION:
            for _ in range(number):
                entry()
        sha256 = hex_of(entry()[:32]) if flags & WITH_METADATA else None
        yield hex_of(header[:32]), terms, sizes, sha256
