"""Small pieces of JSON text that all encoders share."""

import msgspec

from postproc_workers.encoders import Failure


def string(value: str) -> bytes:
    """`value` as a JSON string, with its quotes."""
    return msgspec.json.encode(value)


def error_body(failure: Failure) -> bytes:
    """OpenAI's error object, as the body of a reply or the data of an event."""
    return b'{"error":{"message":%b,"type":%b,"param":null,"code":%b}}' % (
        string(failure.message),
        string(failure.type),
        string(failure.code),
    )
