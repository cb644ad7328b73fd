"""The file of decoded images that a run keeps for the next one."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from random import Random

import torch

from tests.data_fixtures import list_dataset, photo
from tests.fuzz import mutate
from tests.fuzz.case import Case, WrongResultError
from zoo.data.decoded_file import FOOTER, MAGIC, cache_folder, identify, keep_decoded, read_decoded
from zoo.data.decoding import Decoding


def decoded(random: Random, folder: Path) -> Case:
    """A file that is damaged, or was made on purpose: what is used holds the images, else nothing is."""
    shutil.rmtree(cache_folder(), ignore_errors=True)  # the case before may have left a folder there
    dataset = list_dataset(folder, [photo(12, 9, seed) for seed in range(3)])
    identity = identify(dataset, 8)
    assert identity is not None
    right = keep_decoded(identity, Decoding(dataset, 8, 0))
    assert right is not None
    pixels, file, note = right.pixels.clone(), identity.file, "bytes"
    data = file.read_bytes()
    length, _, _ = FOOTER.unpack(data[-FOOTER.size :])
    body, record = data[: -FOOTER.size - length], data[-FOOTER.size - length : -FOOTER.size]
    way, mended = random.randrange(8), False
    file.unlink()
    if way == 0:
        note = random.choice(("folder", "pipe", "hole", "device"))
        if note == "folder":
            file.mkdir()
        elif note == "pipe":
            os.mkfifo(file)
        elif note == "device":
            file.symlink_to("/dev/zero")
        else:
            with file.open("wb") as stream:
                stream.write(data)
                stream.truncate(50 << 30)
    elif way < 4:
        file.write_bytes(mutate.octets(random, data))
    else:  # the record's own checksum is right
        plain, mended = json.loads(record), True
        if way == 4:
            body = mutate.octets(random, body)
            note = "body"
        if way == 5 or random.random() < 0.3:  # the checksums of the pieces too
            body = mutate.octets(random, body[:128]) + body[128:]
            sizes = [128, len(body) - 128]
            plain["pieces"] = [[128, zlib.crc32(body[:128])], [sizes[1], zlib.crc32(body[128:])]]
            note = "body and checksums"
        if way > 5:
            plain, note = mutate.tree(random, plain)
        text = mutate.to_json(random, plain) if random.random() < 0.9 else b"[" * 200_000
        file.write_bytes(body + text + FOOTER.pack(len(text), zlib.crc32(text), MAGIC))

    def read() -> None:
        found = read_decoded(identity)
        if found is not None and not mended and not torch.equal(found.pixels, pixels):
            raise WrongResultError("other pixels than the images have")
        del found
        again = keep_decoded(identity, Decoding(dataset, 8, 0))
        if again is not None and not mended and not torch.equal(again.pixels, pixels):
            raise WrongResultError("other pixels than the images have, after they were kept anew")

    return Case({"read": read}, (), note)
