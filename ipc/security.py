"""Who may connect: a directory of mode 0700 for ipc://, a CURVE key for tcp://.

A deployment over tcp:// has one CURVE key pair, in a file of mode 0600. Each of its processes
holds the file and uses the pair on both ends of its connections; a listener admits no other key.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

_UNIX_PATH_LIMIT = 100


class SecurityError(Exception):
    """An address or a key that must not or cannot be used."""


class CurveKey(msgspec.Struct, frozen=True):
    """A CURVE key pair in Z85 text (40 characters each)."""

    public: str
    secret: str

    @classmethod
    def generate(cls) -> "CurveKey":
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def load(cls, path: Path) -> "CurveKey":
        """Read a key file. Raises SecurityError if it is absent, damaged or open to others."""
        try:
            if path.stat().st_mode & 0o077:
                raise SecurityError(f"{path} can be read by others: chmod 600 it")
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            raise SecurityError(f"{path} is no CURVE key file: {error}") from error

    def save(self, path: Path) -> None:
        """Write the key file with mode 0600. Raises FileExistsError rather than overwrite."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(self))


class _OneKey:
    """The credentials check that ThreadAuthenticator asks for each new connection."""

    def __init__(self, public: str) -> None:
        self._public = public.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._public


def secure_listener(socket: "zmq.Socket[bytes]", key: CurveKey) -> ThreadAuthenticator:
    """Let only holders of `key` connect to `socket`; the caller stops what is returned."""
    authenticator = ThreadAuthenticator(socket.context)
    authenticator.start()
    authenticator.configure_curve_callback("antiphon", _OneKey(key.public))
    socket.zap_domain = b"antiphon"
    socket.curve_server = True
    socket.curve_secretkey = key.secret.encode()
    socket.curve_publickey = key.public.encode()
    return authenticator


def secure_connection(socket: "zmq.Socket[bytes]", key: CurveKey) -> None:
    """Make `socket` prove and demand possession of `key`."""
    socket.curve_serverkey = key.public.encode()
    socket.curve_publickey = key.public.encode()
    socket.curve_secretkey = key.secret.encode()


def check_address(address: str, key: CurveKey | None) -> None:
    """Raise SecurityError for tcp:// without a key, and for an ipc:// directory open to others."""
    if address.startswith("tcp://"):
        if key is None:
            raise SecurityError(f"{address}: tcp:// needs a CURVE key")
    elif address.startswith("ipc://"):
        path = Path(address.removeprefix("ipc://"))
        if len(os.fsencode(path)) > _UNIX_PATH_LIMIT:
            raise SecurityError(f"{path}: longer than {_UNIX_PATH_LIMIT} bytes")
        if not path.parent.is_dir():
            raise SecurityError(f"{path.parent} does not exist")
        if path.parent.stat().st_mode & 0o077:
            raise SecurityError(f"{path.parent} is open to others: its mode must be 0700")
    else:
        raise SecurityError(f"{address}: neither ipc:// nor tcp://")


def make_run_directory() -> Path:
    """A fresh directory of mode 0700 for the sockets of one run, on a short path.

    Raises SecurityError if there is no place for one.
    """
    parents = [os.environ.get("XDG_RUNTIME_DIR", "")]
    with suppress(FileNotFoundError):
        parents.append(tempfile.gettempdir())
    for parent in parents:
        # A relative or empty path is to be ignored (XDG Base Directory Specification).
        if os.path.isabs(parent) and len(os.fsencode(parent)) <= _UNIX_PATH_LIMIT // 2:
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="antiphon-", dir=parent))
    raise SecurityError("no directory for sockets can be made: set TMPDIR to a writable, short one")
