"""What is said of a stream: all of its tokens, in order, and how it ends."""

import pytest

from ipc.messages import PROTOCOL_VERSION
from tests.engine_contract.engines import CONTEXT_LENGTH, NAME, Engine
from tests.engine_contract.frontend import PROMPT, Frontend


def test_hello_is_answered_with_what_the_model_is(frontend: Frontend) -> None:
    info = frontend.info
    assert (info.version, info.model) == (PROTOCOL_VERSION, NAME)
    assert info.context_length == CONTEXT_LENGTH
    assert info.vocabulary_size >= 300


@pytest.mark.parametrize("count", [1, 2, 33])
def test_max_tokens_is_exact(frontend: Frontend, count: int) -> None:
    said = frontend.complete(max_tokens=count)
    assert (len(said.ids), said.end) == (count, "length")
    assert all(0 <= token < frontend.info.vocabulary_size for token in said.ids)


def test_tokens_come_as_they_are_made(frontend: Frontend) -> None:
    assert frontend.complete(max_tokens=40).parts > 10


@pytest.mark.parametrize("room", [1, 3])
def test_the_context_length_ends_a_sequence(frontend: Frontend, room: int) -> None:
    said = frontend.complete([5] * (CONTEXT_LENGTH - room), max_tokens=50)
    assert (len(said.ids), said.end) == (room, "length")


def test_each_worker_hears_of_its_own_streams(frontend: Frontend) -> None:
    streams = [frontend.generate(worker=worker, max_tokens=5) for worker in (3, 0, 7, 3)]
    for stream in streams:
        said = frontend.hear(stream)
        assert (len(said.ids), said.workers) == (5, {stream.worker})


def test_many_streams_at_once(frontend: Frontend) -> None:
    """More than run in one step; each is whole, whatever its length."""
    lengths = [1 + number * 7 % 23 for number in range(150)]
    streams = [frontend.generate([5 + n % 9], max_tokens=n) for n in lengths]
    for stream, length in zip(streams, lengths, strict=True):
        said = frontend.hear(stream)
        assert (len(said.ids), said.end) == (length, "length")
    assert frontend.status().kept == len(streams)


def test_usage_is_counted(frontend: Frontend) -> None:
    before = frontend.status()
    frontend.complete(max_tokens=9)
    frontend.complete([8] * 20, max_tokens=3)
    after = frontend.status()
    assert after.generated_tokens - before.generated_tokens == 12
    assert after.prompt_tokens - before.prompt_tokens == len(PROMPT) + 20
    assert after.steps > before.steps
    assert after.errors == before.errors


def test_a_stream_is_counted_until_it_is_cancelled(frontend: Frontend) -> None:
    long, short = frontend.generate(max_tokens=2000), frontend.generate(max_tokens=2)
    frontend.hear(long, at_least=1)
    frontend.hear(short)
    status = frontend.status()
    assert (status.running + status.waiting, status.kept) == (1, 1)
    frontend.cancel(short)
    frontend.cancel(long)
    status = frontend.status()
    assert (status.running, status.waiting, status.kept) == (0, 0, 0)


def test_cached_prompts_are_told_and_shared_only_within_a_salt(
    engine: Engine, frontend: Frontend
) -> None:
    engine.need("prefix_cache")
    prompt = [20 + number % 200 for number in range(300)]
    cached = [
        frontend.complete(prompt, tenant=tenant, cache_salt=salt).cached_tokens
        for tenant, salt in [("a", ""), ("a", ""), ("a", "s"), ("b", ""), ("b", "s"), ("b", "s")]
    ]
    assert [count > 0 for count in cached] == [False, True, False, False, False, True]
    assert all(count < len(prompt) for count in cached)
    assert frontend.status().prefix_hit_tokens >= sum(cached)
