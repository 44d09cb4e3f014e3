"""Seeds that follow from a run's seed and a name, the same in every process."""

import hashlib

SEED_BITS = 31
"""What every random generator and server takes."""


def derived_seed(seed: int, *names: object) -> int:
    """A seed of its own for what is named so, from 0 up to 2**31 - 1."""
    text = "\0".join(map(str, (seed, *names)))
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - SEED_BITS)
