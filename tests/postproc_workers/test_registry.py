"""One registry, many streams: failures stay with their stream, and nothing stays of any."""

import json
import logging
from typing import Any

import pytest

from ipc.messages import (
    PROTOCOL_VERSION,
    Abort,
    ChatFormat,
    ErrorResponse,
    Fail,
    Finish,
    Heartbeat,
    Hello,
    Open,
    Output,
    Outputs,
    Owner,
    Released,
    Step,
    TokenLogprobs,
    Tokens,
    WorkerStatus,
)
from postproc_workers.encoders import Failure
from postproc_workers.post_processor import PostProcessor, engine_failure, frontend_failure
from postproc_workers.registry import Registry
from postproc_workers.testkit.strategies import encode
from tests.postproc_workers.event_rules import read_chat_stream, read_responses_stream
from tests.postproc_workers.turns import RESPONSES, opening

OWNER = Owner(1, 1)
OTHER = Owner(2, 1)
TURN = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi."
POISON = 199_997


class FailsAtPoison(PostProcessor):
    """The real thing, but for a token at which it raises: in the middle of a step."""

    def feed(self, tokens: list[int], logprobs: list[TokenLogprobs] | None = None) -> None:
        if POISON in tokens:
            super().feed(tokens[: tokens.index(POISON)])
            raise RuntimeError("the glyph table is gone")
        super().feed(tokens, logprobs)


class FailsAtTheEnd(PostProcessor):
    def finish(self, finish: Finish, now: int) -> None:
        raise RuntimeError("the glyph table is gone")


class FailsToFail(FailsAtPoison):
    def fail(self, failure: Failure, now: int) -> None:
        raise RuntimeError("the glyph table is gone")


def opened(stream_id: int = 1, lease: int = 1, output: Any = RESPONSES) -> Open:
    base = opening(output)
    return Open(
        stream_id, lease, base.response_id, base.model, base.created, 17, output, streaming=True
    )


def present(make_processor: Any = PostProcessor, *owners: Owner) -> Registry:
    registry = Registry(make_processor)
    for owner in owners or (OWNER,):
        registry.owner_arrived(owner)
    return registry


def bodies(*replies: object) -> bytes:
    found = b""
    for reply in replies:
        assert isinstance(reply, Outputs)
        found += b"".join(output.body for output in reply.outputs)
    return found


def only(reply: object) -> Output:
    assert isinstance(reply, Outputs)
    [output] = reply.outputs
    return output


def test_one_of_eight_fails_and_seven_finish() -> None:
    registry = present(FailsAtPoison)
    parts: dict[int, bytes] = {}
    for stream in range(8):
        output = only(registry.open(OWNER, opened(stream, stream), 0))
        parts[stream] = output.body
    first = encode(TURN)
    for place, token in enumerate(first):
        entries = [
            Tokens(s, s, place, [POISON if (s, place) == (3, 10) else token]) for s in range(8)
        ]
        outputs = registry.step(OWNER, Step(entries), 0)
        for output in outputs.outputs if outputs else ():
            parts[output.stream_id] += output.body
    assert registry.live == 7
    last = [Tokens(s, s, len(first), encode("<|return|>"), Finish("stop")) for s in range(8)]
    outputs = registry.step(OWNER, Step(last), 0)
    assert outputs is not None
    assert [output.stream_id for output in outputs.outputs] == [0, 1, 2, 4, 5, 6, 7]
    for output in outputs.outputs:
        parts[output.stream_id] += output.body
    assert read_responses_stream(parts.pop(3)).response["status"] == "failed"
    assert len(set(parts.values())) == 1
    assert read_responses_stream(parts[0]).response["status"] == "completed"
    assert registry.released["final"] == 7
    assert registry.released["error"] == 1


def test_what_came_before_an_exception_is_sent_and_numbered() -> None:
    registry = present(FailsAtPoison)
    start = registry.open(OWNER, opened(), 0)
    tokens = [*encode(TURN), POISON, *encode(" More")]
    end = registry.step(OWNER, Step([Tokens(1, 1, 0, tokens, Finish("stop"))]), 0)
    response = read_responses_stream(bodies(start, end)).response
    assert response["output"][-1]["content"][0]["text"] == "Hi."
    assert only(end).terminal is not None
    assert "the glyph table is gone" in str(end)


def test_an_exception_at_the_end_loses_nothing_either() -> None:
    registry = present(FailsAtTheEnd)
    start = registry.open(OWNER, opened(), 0)
    end = registry.step(OWNER, Step([Tokens(1, 1, 0, encode(TURN), Finish("stop"))]), 0)
    response = read_responses_stream(bodies(start, end)).response
    assert response["status"] == "failed"
    assert response["output"][-1]["content"][0]["text"] == "Hi."
    assert registry.live == 0


def test_a_failure_that_cannot_be_told_still_ends_the_stream() -> None:
    registry = present(FailsToFail)
    registry.open(OWNER, opened(), 0)
    output = only(registry.step(OWNER, Step([Tokens(1, 1, 0, [POISON])]), 0))
    assert output.body == b""
    assert output.terminal is not None
    assert output.terminal.reason == "error"
    assert registry.live == 0


def test_exceptions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    registry = present(FailsAtPoison)
    registry.open(OWNER, opened(), 0)
    registry.step(OWNER, Step([Tokens(1, 1, 0, [POISON])]), 0)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "the glyph table is gone" in caplog.text


def test_lost_tokens_fail_the_stream_loudly() -> None:
    registry = present()
    start = registry.open(OWNER, opened(), 0)
    first = registry.step(OWNER, Step([Tokens(1, 1, 0, encode(TURN))]), 0)
    gap = registry.step(OWNER, Step([Tokens(1, 1, len(encode(TURN)) + 2, encode(" x"))]), 0)
    response = read_responses_stream(bodies(start, first, gap)).response
    place = len(encode(TURN))
    assert response["error"]["message"] == (
        f"tokens {place} to {place + 1} of the stream were lost"
    )


def test_repeated_tokens_are_read_once() -> None:
    registry = present()
    tokens = encode(TURN)
    start = registry.open(OWNER, opened(output=ChatFormat()), 0)
    parts = [bodies(start)]
    for place in range(len(tokens)):
        begin = max(0, place - 3)
        entry = Tokens(1, 1, begin, tokens[begin : place + 1])
        outputs = registry.step(OWNER, Step([entry]), 0)
        parts += [bodies(outputs)] if outputs else []
    end = registry.step(OWNER, Step([Tokens(1, 1, 0, tokens, Finish("stop"))]), 0)
    chat = read_chat_stream(b"".join(parts) + bodies(end))
    assert (chat.message["reasoning"], chat.message["content"]) == ("Hm.", "Hi.")
    assert registry.stale == len(tokens)


def test_output_says_how_many_tokens_it_accounts_for() -> None:
    registry = present()
    assert only(registry.open(OWNER, opened(), 0)).tokens == 0
    tokens = encode(TURN)
    output = only(registry.step(OWNER, Step([Tokens(1, 1, 0, tokens)]), 0))
    assert output.tokens == len(tokens)
    events = output.body.count(b"event: ")
    assert output.next_sequence == 2 + events
    last = only(registry.step(OWNER, Step([Tokens(1, 1, len(tokens), [], Finish("stop"))]), 0))
    assert last.terminal is not None
    assert (last.terminal.status, last.terminal.output_tokens) == (200, len(tokens))
    assert not last.terminal.stopped_early


def test_a_step_without_text_gives_no_output() -> None:
    registry = present()
    registry.open(OWNER, opened(), 0)
    assert registry.step(OWNER, Step([Tokens(1, 1, 0, encode("<|channel|>final"))]), 0) is None


def test_an_early_end_tells_that_the_engine_goes_on() -> None:
    registry = present()
    base = opening(ChatFormat(), stop=("END",))
    registry.open(OWNER, base, 0)
    output = only(registry.step(OWNER, Step([Tokens(1, 1, 0, encode(TURN + " END of"))]), 0))
    assert output.terminal is not None
    assert output.terminal.stopped_early
    assert output.terminal.output_tokens == len(encode(TURN + " END"))
    assert registry.step(OWNER, Step([Tokens(1, 1, 30, [5], Finish("stop"))]), 0) is None
    assert registry.stale == 1


@pytest.mark.parametrize("finish", [None, Finish("stop"), Finish("length")])
def test_an_early_end_is_the_same_if_the_engines_end_comes_with_it(finish: Finish | None) -> None:
    registry = present()
    start = registry.open(OWNER, opening(RESPONSES, stop=("END",)), 0)
    tokens = Tokens(1, 1, 0, encode(TURN + " END"), finish, cached_tokens=5)
    end = registry.step(OWNER, Step([tokens]), 0)
    response = read_responses_stream(bodies(start, end)).response
    assert response["status"] == "completed"
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 5


def test_an_error_in_the_step_of_the_last_tokens_comes_after_them() -> None:
    registry = present()
    start = registry.open(OWNER, opened(), 0)
    error = ErrorResponse(1, 1, "overloaded", "No memory left.")
    outputs = registry.step(OWNER, Step([Tokens(1, 1, 0, encode(TURN))], (error,)), 0)
    response = read_responses_stream(bodies(start, outputs)).response
    assert response["error"] == {"code": "overloaded", "message": "No memory left."}
    assert response["output"][-1]["content"][0]["text"] == "Hi."


def test_an_unstreamed_request_gets_one_output() -> None:
    registry = present()
    tokens = encode(TURN)
    assert registry.open(OWNER, opening(RESPONSES, streaming=False), 0) is None
    assert registry.step(OWNER, Step([Tokens(1, 1, 0, tokens)]), 0) is None
    end = Step([Tokens(1, 1, len(tokens), [], Finish("stop"))])
    output = only(registry.step(OWNER, end, 0))
    assert output.terminal is not None
    assert json.loads(output.body)["status"] == "completed"


def test_two_owners_can_use_one_stream_id_and_lease() -> None:
    registry = present(PostProcessor, OWNER, OTHER)
    for owner in (OWNER, OTHER):
        registry.open(owner, opened(), 0)
    registry.abort(OTHER, Abort(1, 1))
    assert registry.live == 1
    assert registry.step(OWNER, Step([Tokens(1, 1, 0, encode(TURN))]), 0) is not None


def test_messages_about_anothers_stream_are_counted_as_not_owned() -> None:
    registry = present(PostProcessor, OWNER, OTHER)
    registry.open(OWNER, opened(), 0)
    registry.abort(OTHER, Abort(1, 1))
    registry.fail(OTHER, Fail(1, 1, "overloaded", ""), 0)
    error = ErrorResponse(1, 1, "internal", "")
    registry.step(OTHER, Step([Tokens(1, 1, 0, [5])], (error,)), 0)
    assert (registry.not_owned, registry.stale, registry.live) == (4, 0, 1)


def test_an_owner_that_has_not_arrived_is_refused() -> None:
    registry = Registry()
    assert registry.open(OWNER, opened(5, 6), 0) == Released(5, 6, "not_owned")
    assert registry.step(OWNER, Step([Tokens(5, 6, 0, [1])]), 0) is None
    registry.abort(OWNER, Abort(5, 6))
    assert (registry.opened, registry.not_owned) == (0, 3)


def test_a_late_open_of_a_released_stream_is_stale_even_after_a_reconnect() -> None:
    registry = present()
    registry.open(OWNER, opened(1, 1), 0)
    registry.open(OWNER, opened(2, 2), 0)
    registry.owner_lost(OWNER)
    registry.handle(OWNER, Hello(PROTOCOL_VERSION, OWNER), 0)
    assert registry.open(OWNER, opened(1, 1), 0) is None
    assert registry.open(OWNER, opened(3, 2), 0) is None
    assert (registry.stale, registry.live) == (2, 0)
    assert registry.open(OWNER, opened(3, 3), 0) is not None


def test_a_new_life_of_a_frontend_starts_from_nothing() -> None:
    registry = present()
    registry.open(OWNER, opened(1, 9), 0)
    later = Owner(OWNER.frontend, 2)
    registry.handle(later, Hello(PROTOCOL_VERSION, later), 0)
    assert registry.released["owner_lost"] == 1
    assert registry.open(later, opened(1, 1), 0) is not None
    registry.handle(OWNER, Hello(PROTOCOL_VERSION, OWNER), 0)
    assert registry.live == 1
    assert isinstance(registry.open(OWNER, opened(1, 10), 0), Released)


def test_an_idle_stream_is_released_at_the_second_sweep_without_a_token() -> None:
    registry = present()
    registry.open(OWNER, opened(1, 1), 0)
    registry.open(OWNER, opened(2, 2), 0)
    assert registry.release_idle() == []
    registry.step(OWNER, Step([Tokens(2, 2, 0, [5])]), 0)
    assert registry.release_idle() == [(OWNER, Released(1, 1, "expired"))]
    assert registry.release_idle() == [(OWNER, Released(2, 2, "expired"))]


def test_a_heartbeat_is_answered_with_the_counters() -> None:
    registry = present()
    registry.open(OWNER, opened(), 0)
    markup = encode("<|channel|>final<|message|>Hi<|end|><|end|>")
    registry.step(OWNER, Step([Tokens(1, 1, 0, markup, Finish("stop"))]), 0)
    status = registry.handle(OWNER, Heartbeat(), 0)
    assert status == WorkerStatus(
        live=0,
        opened=1,
        released=dict.fromkeys(registry.released, 0) | {"final": 1},
        stale=0,
        not_owned=0,
        rejected=0,
        recovered={"stray_token": 1},
    )


def test_what_was_mended_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    registry = present()
    registry.open(OWNER, opened(), 0)
    registry.step(OWNER, Step([Tokens(1, 1, 0, encode("Hi"), Finish("stop"))]), 0)
    assert caplog.messages == ["stream 1: mended {'text_in_header': 1}"]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("invalid_request", Failure(400, "invalid_request_error", "invalid_prompt", "m")),
        (
            "context_length_exceeded",
            Failure(400, "invalid_request_error", "context_length_exceeded", "m"),
        ),
        ("overloaded", Failure(503, "server_error", "overloaded", "m")),
        ("internal", Failure(500, "server_error", "server_error", "m")),
    ],
)
def test_how_clients_see_an_engines_errors(code: Any, failure: Failure) -> None:
    assert engine_failure(ErrorResponse(1, 1, code, "m")) == failure


def test_how_clients_see_the_frontends_errors() -> None:
    failed = frontend_failure(Fail(1, 1, "server_error", "m"))
    assert failed == Failure(500, "server_error", "server_error", "m")
    failed = frontend_failure(Fail(1, 1, "overloaded", "m"))
    assert failed == Failure(503, "server_error", "overloaded", "m")
