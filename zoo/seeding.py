"""Random numbers as a function of where they are used, so that nothing about them needs saving."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is a pure function of `parts`, e.g. `("views", seed, epoch, step)`.

    Every consumer of randomness seeds itself from its own position in the run. A resumed run therefore
    continues bit for bit without any generator state in the checkpoint, and the number of loader
    workers or ranks cannot change what is drawn.
    """
    text = "/".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
