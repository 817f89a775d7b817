"""What is kept of a stream, as bytes: enough to make its output again, and no secret."""

from msgspec.structs import replace

from ipc.codec import encode
from ipc.messages import Ending, Open, Record, ResponsesFormat, TokenLogprobs


def make_record(
    opening: Open,
    tokens: list[int],
    ending: Ending | None,
    cached_tokens: int = 0,
    logprobs: list[TokenLogprobs] | None = None,
) -> bytes:
    """The record of a stream. The key that its reasoning is sealed with is left out."""
    opening = replace(opening, resume=None)
    if isinstance(opening.format, ResponsesFormat):
        opening = replace(opening, format=replace(opening.format, seal_key=b""))
    return encode(Record(opening, tokens, ending, cached_tokens, logprobs))
