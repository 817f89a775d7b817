"""Names for blocks of a prompt: a hash of all tokens up to a block's end, and of who may share it.

Engines find cached blocks by these, and whoever routes requests finds the engine that has them.
"""

import hashlib
from array import array
from collections.abc import Sequence

DIGEST_BYTES = 16


def root_hash(tenant: str, cache_salt: str = "") -> bytes:
    """The hash before the first block. Different for each pair, so that no tenant's requests can
    tell by their timing what another's prompts were."""
    name = tenant.encode()
    return _digest(len(name).to_bytes(4, "little") + name + cache_salt.encode())


def extend_hashes(
    hashes: list[bytes], root: bytes, tokens: Sequence[int], block_size: int, end: int
) -> None:
    """Append the hashes of whole blocks of the first `end` tokens that are not there yet."""
    for index in range(len(hashes), end // block_size):
        block = array("I", tokens[index * block_size : (index + 1) * block_size])
        hashes.append(_digest((hashes[-1] if hashes else root) + block.tobytes()))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
