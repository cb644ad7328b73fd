"""Random numbers as a function of where they are used, so that nothing about them needs saving."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is a pure function of `parts`, e.g. `("views", seed, epoch, step)`.

    Every consumer of randomness seeds itself from its own position in the run. A resumed run therefore
    continues bit for bit without any generator state in the checkpoint, and the number of loader
    workers or ranks cannot change what is drawn.
    """
    text = "/".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global generators of Python and NumPy for a while, and put their states back.

    For other libraries' code that draws from them: timm's augmentations and mixing. `seed` is below 2^32.
    """
    import numpy as np

    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
