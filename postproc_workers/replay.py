"""Makes the output of an ended stream again, from its record."""

import msgspec

from ipc.messages import Record, ResponsesFormat
from postproc_workers.encoders import Failure
from postproc_workers.post_processor import PostProcessor


def replay(record: Record, *, streaming: bool) -> bytes:
    """The bytes that the stream's client was sent, or would have been: all events, or the object
    that they add up to. A Responses object is the same for every status. Takes time linear in the
    record's tokens, about a millisecond a thousand."""
    opening = msgspec.structs.replace(record.opening, streaming=streaming, keep=False)
    if isinstance(opening.format, ResponsesFormat):
        kept = msgspec.structs.replace(opening.format, retrieved=True)
        opening = msgspec.structs.replace(opening, format=kept)
    processor = PostProcessor(opening)
    processor.cached_tokens = record.cached_tokens
    processor.open()
    ending = record.ending
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
        if record.ending.finish is not None:
            raise
