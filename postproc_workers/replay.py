"""Makes the output of an ended stream again, from its record."""

from msgspec.structs import replace

from ipc.messages import Record, ResponsesFormat
from postproc_workers.encoders import Failure
from postproc_workers.encoders.responses import ResponsesEncoder
from postproc_workers.post_processor import PostProcessor


def replay(record: Record, *, streaming: bool, seal_key: bytes = b"") -> bytes:
    """The bytes that the stream's client was sent, or would have been: all events, or the object
    that they add up to. A Responses object is the same for every status; one that has not ended is
    told as being in progress. Takes time linear in the tokens, about a millisecond a thousand."""
    opening = replace(record.opening, streaming=streaming, keep=False)
    if isinstance(opening.format, ResponsesFormat):
        key = seal_key if opening.format.sealed else b""
        output = replace(opening.format, seal_key=key, retrieved=True)
        if record.ending is None:
            return ResponsesEncoder(opening, output).in_progress()
        opening = replace(opening, format=output)
    ending = record.ending
    assert ending is not None
    processor = PostProcessor(opening)
    processor.cached_tokens = record.cached_tokens
    processor.open()
    if ending.failure is None:
        assert ending.finish is not None
        processor.feed(record.tokens, record.logprobs)
        processor.finish(ending.finish, ending.at)
    else:
        _feed_what_can_be(processor, record)
        processor.fail(Failure(*ending.failure), ending.at)
    return processor.take()


def _feed_what_can_be(processor: PostProcessor, record: Record) -> None:
    """A stream whose post-processing failed fails at the same token again."""
    try:
        processor.feed(record.tokens, record.logprobs)
    except Exception:
        if record.ending is None or record.ending.failure is None:
            raise
