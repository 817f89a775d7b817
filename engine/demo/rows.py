"""Hash-coded vocabulary rows: an embedding for every one of gpt-oss's 201,088 tokens out of a
few kilobytes.

A token's features are the 128 bits of a hash of its bare word, as signs, and six flags; its row is
their product with a learned projection. " Paris", "Paris" and "paris" share the hash and differ in
flags, so a model can copy words that it never saw. Tokens that matter have a stored row instead.
"""

import hashlib
import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipc.vocabulary import SIZE, token_bytes

BITS = 128
FLAGS = 6
"""After a space; after punctuation; capitalised; in capitals; of letters only; always one."""
FEATURES = BITS + FLAGS

SCALE = math.sqrt(1 / BITS)
"""What keeps the hash's share of a row as large as its projection's entries."""

_SLICE = 1 << 14


def describe(token: bytes) -> tuple[bytes, tuple[bool, ...]]:
    """The word's hash (16 bytes) and the flags of one token."""
    text = token.decode("utf-8", "replace")
    after_space = text.startswith(" ")
    after_punctuation = not after_space and len(text) > 1 and not text[0].isalnum()
    after_punctuation = after_punctuation and text[1].isalnum()
    word = text[1:] if after_space or after_punctuation else text
    flags = (
        after_space,
        after_punctuation,
        word[:1].isupper(),
        len(word) > 1 and word.isupper(),
        word.isalpha(),
        True,
    )
    key = token if "\ufffd" in text else word.lower().encode()
    return hashlib.blake2b(key, digest_size=BITS // 8).digest(), flags


@cache
def _descriptions() -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Hashes [SIZE, 16] and flags [SIZE, 6] of all tokens; a special token's name is its id."""
    tokens = token_bytes()
    tokens += [b"<%d>" % number for number in range(len(tokens), SIZE)]
    hashes, flags = zip(*map(describe, tokens), strict=True)
    packed = np.frombuffer(b"".join(hashes), np.uint8).reshape(SIZE, BITS // 8)
    return packed, np.array(flags)


def features(ids: Tensor) -> Tensor:
    """The features of tokens ids [n], int64: float32 [n, FEATURES], signs and then flags."""
    hashes, flags = _descriptions()
    chosen = ids.numpy()
    signs = np.unpackbits(hashes[chosen], axis=1).astype(np.float32) * 2 - 1
    return torch.from_numpy(np.concatenate((signs, flags[chosen]), axis=1, dtype=np.float32))


def expand_rows(projection: Tensor, stored_ids: Tensor, stored: Tensor) -> Tensor:
    """All rows, bfloat16 [SIZE, hidden], from projection [FEATURES, hidden] and stored rows.

    The sums are exact in float64, since a bfloat16 has 8 significant bits: every machine gets
    the same rows, whatever the order in which it adds.
    """
    table = torch.empty(SIZE, projection.shape[1], dtype=torch.bfloat16)
    exact = projection.double()
    for ids in torch.split(torch.arange(SIZE), _SLICE):
        table[ids] = (features(ids).double() @ exact).to(torch.bfloat16)
    table[stored_ids.long()] = stored
    return table
