"""What one run is told: made by the command line, handed to each process as JSON."""

from typing import Literal

import msgspec

DEFAULT_MAX_STREAMS = 4096
DEFAULT_KEEP_ALIVE_SECONDS = 120
DEFAULT_MAX_BODY_BYTES = 8 * 1024 * 1024
"""64 bytes for each token of the longest context. A body is parsed in the event loop."""
DEFAULT_STORE_SECONDS = 30 * 24 * 3600
"""As long as OpenAI keeps responses."""
DEFAULT_STORE_COUNT = 100_000


class FrontendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a frontend process needs. Addresses are ipc:// or tcp://."""

    engine: str = ""
    workers: dict[int, str] = {}
    control: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    curve_key: str | None = None
    api_keys: str | None = None
    admin_keys: str | None = None
    max_streams: int = DEFAULT_MAX_STREAMS
    max_stream_seconds: float | None = None
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    keep_alive_seconds: int = DEFAULT_KEEP_ALIVE_SECONDS
    drain_seconds: float = 30.0
    store: str | None = None
    """URL of the database; None: nothing is stored."""
    store_seconds: float = DEFAULT_STORE_SECONDS
    store_count: int = DEFAULT_STORE_COUNT
    seal_key: str | None = None
    """File of the key that reasoning is sealed with; None: a key of this process's life."""
    stream_error_event: bool = True
    """Whether a Responses stream that fails has an `error` event before `response.failed`."""
    reasoning_member: Literal["reasoning", "reasoning_content"] = "reasoning"
    log_level: str = "warning"
