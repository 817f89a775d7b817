"""Every message survives the wire, and nothing but a message gets through a decoder."""

import inspect
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipc import codec, messages
from ipc.codec import MalformedMessage, MessageDecoder

UNIONS: list[tuple[MessageDecoder[Any], Any]] = [
    (codec.frontend_to_engine, messages.FrontendToEngine),
    (codec.engine_to_frontend, messages.EngineToFrontend),
    (codec.frontend_to_worker, messages.FrontendToWorker),
    (codec.worker_to_frontend, messages.WorkerToFrontend),
]
DECODERS = [decode for decode, _ in UNIONS]


LEAVES: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=5),
    bytes: st.binary(max_size=5),
    type(None): st.none(),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation as the messages use them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in LEAVES:
        return LEAVES[annotation]
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is tuple and Ellipsis not in arguments:
        return st.tuples(*map(values, arguments))
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if arguments:
        return st.one_of([values(argument) for argument in arguments])
    fields = get_type_hints(annotation)
    return st.builds(annotation, **{name: values(hint) for name, hint in fields.items()})


@pytest.mark.parametrize(("decode", "union"), UNIONS)
@given(data=st.data())
def test_round_trip(decode: MessageDecoder[Any], union: Any, data: st.DataObject) -> None:
    message = data.draw(values(union))
    assert decode(codec.encode(message)) == message


@given(frame=st.binary(max_size=200), index=st.integers(0, len(DECODERS) - 1))
def test_any_bytes_are_a_message_or_malformed(frame: bytes, index: int) -> None:
    try:
        message = DECODERS[index](frame)
    except MalformedMessage:
        return
    assert isinstance(message, messages.Message)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
TAGS = ["hello", "open", "step", "fail", "abort", "generate", "cancel", "outputs", "refused"]


@given(tag=st.sampled_from(TAGS), fields=st.lists(json_values, max_size=13), data=st.data())
def test_right_tags_with_wrong_fields_are_malformed(
    tag: str, fields: list[object], data: st.DataObject
) -> None:
    frame = msgspec.msgpack.encode([tag, *fields])
    for decode in DECODERS:
        try:
            decode(frame)
        except MalformedMessage:
            continue


def test_a_deep_message_is_malformed() -> None:
    frame = b"\x92\xa4step" + b"\x91" * 100_000
    for decode in DECODERS:
        with pytest.raises(MalformedMessage):
            decode(frame)


def test_an_oversized_message_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", 10)
    with pytest.raises(MalformedMessage, match="11 bytes"):
        codec.frontend_to_worker(b"x" * 11)


def test_all_messages_are_frozen_and_array_like() -> None:
    structs = [
        member
        for _, member in inspect.getmembers(messages, inspect.isclass)
        if issubclass(member, messages.Message)
    ]
    assert len(structs) > 20
    for struct in structs:
        config = struct.__struct_config__
        assert config.frozen, struct
        assert config.array_like, struct
