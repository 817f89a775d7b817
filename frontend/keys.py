"""API keys: one JSON object a line, with a key's SHA-256, its tenant and its time of creation.

A key is 256 random bits, which nobody can guess from its hash, so a fast hash is enough (slow ones
protect what people choose). Looking a hash up in a dict is safe for the same reason: what its
timing could tell is the hash of the guess, not how near the guess is to a key.
"""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from frontend.errors import AuthenticationError

PREFIX = "sk-antiphon-"


class KeyFileError(Exception):
    """The key file cannot be read; the message says which line is damaged."""


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the key file. `created` is in Unix seconds."""

    sha256: str
    tenant: str
    created: int


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def make_key(tenant: str, created: int) -> tuple[str, KeyRecord]:
    """A new key in plain text, to be shown once, and the record to be kept of it."""
    plain = PREFIX + secrets.token_urlsafe(32)
    return plain, KeyRecord(_digest(plain), tenant, created)


def append_key(path: Path, record: KeyRecord) -> None:
    """Add a record to the key file, which is made with mode 0600 if there is none.

    One write under a lock, and on the disk on return: writers at one time lose no line, and a
    line that a crash left unfinished spoils no other.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        unfinished = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" * unfinished + msgspec.json.encode(record) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class KeyRing:
    """The tenants by key."""

    def __init__(self, records: Iterable[KeyRecord]) -> None:
        self._tenants = {record.sha256.lower(): record.tenant for record in records}

    def __len__(self) -> int:
        return len(self._tenants)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a key file. Raises KeyFileError, with the line's number, if it is damaged."""
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise KeyFileError(f"cannot read {path}: {error.strerror}") from error
        return cls(
            _read_record(line, f"{path}:{number}")
            for number, line in enumerate(lines, 1)
            if line.strip()
        )

    def tenant_of(self, authorization: str | None, api_key: str | None = None) -> str:
        """The tenant of an Authorization header, or without one of an `x-api-key` header, as
        Anthropic's clients send it. Raises AuthenticationError."""
        if authorization is None and api_key is not None:
            return self.tenant_of_key(api_key.strip())
        scheme, _, key = (authorization or "").strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationError(
                "You didn't provide an API key. Send it in the header "
                "'Authorization: Bearer YOUR_KEY'."
            )
        return self.tenant_of_key(key.strip())

    def tenant_of_key(self, key: str) -> str:
        """The tenant of a key in plain text. Raises AuthenticationError."""
        tenant = self._tenants.get(_digest(key))
        if tenant is None:
            raise AuthenticationError("Incorrect API key provided.")
        return tenant


def _read_record(line: bytes, place: str) -> KeyRecord:
    try:
        record = msgspec.json.decode(line, type=KeyRecord)
        digest = bytes.fromhex(record.sha256)
    except (msgspec.DecodeError, ValueError) as error:
        raise KeyFileError(f"{place}: {error}") from error
    if len(digest) != hashlib.sha256().digest_size or not record.tenant:
        raise KeyFileError(f"{place}: a record needs a SHA-256 in hexadecimal and a tenant")
    return record
