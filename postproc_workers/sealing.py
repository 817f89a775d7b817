"""Texts that a client keeps for the server without being able to read or to change them.

AES-SIV (RFC 5297): what is sealed depends on its key, its tenant and its text alone, so a stream
that is made again after a worker was lost is sealed to the same bytes, and no nonce can repeat.
"""

import base64
import binascii
import zlib
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

KEY_BYTES = 64
Kind = Literal["reasoning", "compaction"]

_MARK = "ant1."
MAX_TEXT = 16 * 1024 * 1024
"""More than a body of 8 MiB can hold but by a bomb."""


def make_key() -> bytes:
    """A new random key."""
    return AESSIV.generate_key(KEY_BYTES * 8)


def seal(key: bytes, kind: Kind, tenant: str, text: str) -> str:
    """`text` as an opaque string that only `key` opens, for the same kind and tenant."""
    packed = zlib.compress(text.encode())
    sealed = AESSIV(key).encrypt(packed, [kind.encode(), tenant.encode()])
    return _MARK + base64.urlsafe_b64encode(sealed).decode()


def unseal(key: bytes, kind: Kind, tenant: str, sealed: str) -> str | None:
    """The text of `seal`; None if it is not of this key, kind and tenant."""
    if not sealed.startswith(_MARK):
        return None
    text = sealed.removeprefix(_MARK)
    try:
        raw = base64.urlsafe_b64decode(text)
        if base64.urlsafe_b64encode(raw).decode() != text:  # the decoder passes over much
            return None
        packed = AESSIV(key).decrypt(raw, [kind.encode(), tenant.encode()])
    except (binascii.Error, ValueError, InvalidTag):
        return None
    opened = zlib.decompressobj()
    found = opened.decompress(packed, MAX_TEXT)
    return found.decode() if opened.eof else None
