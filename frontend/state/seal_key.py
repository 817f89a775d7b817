"""The key that reasoning is sealed with for clients that keep it."""

import logging
import os
import tempfile
from pathlib import Path

from postproc_workers.sealing import KEY_BYTES, make_key

_logger = logging.getLogger(__name__)

SEAL_KEY_FILE = "seal.key"


class SealKeyError(Exception):
    """The file is not one of a key."""


def load_seal_key(path: Path | None) -> bytes:
    """The key in a file, which is made if it is not there; without a file, or where it cannot be
    written, a key that lives as long as this process. Raises SealKeyError."""
    if path is None:
        return make_key()
    try:
        return _loaded(path) or _made(path)
    except OSError as error:
        _logger.warning(
            "%s: %s: what is sealed now cannot be opened after a restart", path, error.strerror
        )
        return make_key()


def _loaded(path: Path) -> bytes | None:
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(key) != KEY_BYTES:
        raise SealKeyError(f"{path} is not a key of {KEY_BYTES} bytes")
    return key


def _made(path: Path) -> bytes:
    """A new key, or the one that another process has just made there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = make_key()
    # Readable by its user alone; of a name that no other process takes, in whatever container.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(descriptor)
        os.link(partial, path)
    except FileExistsError:
        found = _loaded(path)
        assert found is not None
        return found
    finally:
        partial.unlink()
    return key
