"""The whole core on a small random model: what a sequence generates does not depend on what runs
beside it, on preemption, or on how its prompt was cut."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.build import build_core
from engine.core import ModelCore
from engine.options import EngineOptions
from ipc.messages import GenerationRequest
from tests.engine.builders import OWNER, make_request

REQUESTS = [
    make_request(1, prompt=[1, 2, 3], max_tokens=20, temperature=0.0),
    make_request(2, prompt=list(range(10, 60)), max_tokens=12, seed=1),
    make_request(3, prompt=[4] * 17, max_tokens=20, seed=1, top_p=0.9),
    make_request(4, prompt=[5, 6], max_tokens=20, seed=2, top_k=20, temperature=0.7),
    make_request(5, prompt=[1, 2, 3], max_tokens=20, seed=1),
    make_request(6, prompt=[1, 2, 3], max_tokens=20, seed=2),
]


def generate(core: ModelCore, requests: list[GenerationRequest]) -> dict[int, list[int]]:
    """The tokens of each stream; every one must finish."""
    for request in requests:
        core.add(OWNER, request)
    tokens: dict[int, list[int]] = {request.stream_id: [] for request in requests}
    while core.wait() is not None:
        for step in core.step().values():
            assert not step.errors
            for part in step.tokens:
                assert part.start == len(tokens[part.stream_id])
                tokens[part.stream_id] += part.ids
    return tokens


def make_core(directory: Path, **options: Any) -> ModelCore:
    return build_core(directory, EngineOptions("tiny", dtype="float32", **options))


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> dict[int, list[int]]:
    """What each request generates in a core of its own."""
    generated: dict[int, list[int]] = {}
    for request in REQUESTS:
        generated |= generate(make_core(checkpoint, blocks=50), [request])
    return generated


def test_requests_generate_what_they_are_asked_for(alone: dict[int, list[int]]) -> None:
    assert {stream_id: len(tokens) for stream_id, tokens in alone.items()} == {
        request.stream_id: request.sampling.max_tokens for request in REQUESTS
    }
    assert alone[5] != alone[6]


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": 50},
        {"blocks": 50, "max_sequences": 2},
        {"blocks": 100, "block_size": 4, "max_step_tokens": 7, "max_sequences": 7},
    ],
)
def test_together_as_alone(
    checkpoint: Path, alone: dict[int, list[int]], options: dict[str, int]
) -> None:
    core = make_core(checkpoint, **options)
    assert generate(core, REQUESTS) == alone
    assert core.status().preemptions == 0


def test_preempted_as_alone(checkpoint: Path, alone: dict[int, list[int]]) -> None:
    core = make_core(checkpoint, blocks=24, block_size=4, max_step_tokens=16, max_sequences=6)
    assert generate(core, REQUESTS) == alone
    assert core.status().preemptions > 0
    assert core.status().free_blocks == 24


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("block_size", [4, 16])
def test_with_cached_beginnings_as_alone(
    checkpoint: Path, alone: dict[int, list[int]], prefix_caching: bool, block_size: int
) -> None:
    """The second time, and for a prompt that goes on where an answer ended."""
    core = make_core(checkpoint, blocks=200, block_size=block_size, prefix_caching=prefix_caching)
    generate(core, REQUESTS)
    again = [
        msgspec.structs.replace(r, stream_id=r.stream_id + 6, lease=r.lease + 6) for r in REQUESTS
    ]
    tokens = generate(core, again)
    assert {stream_id - 6: said for stream_id, said in tokens.items()} == alone
    conversation = [*REQUESTS[1].prompt, *alone[2], 9, 9, 9]
    more = make_request(20, prompt=conversation, max_tokens=9, temperature=0.0)
    fresh = make_core(checkpoint, blocks=50, prefix_caching=False)
    assert generate(core, [more]) == generate(fresh, [more])
    hits = core.status().prefix_hit_tokens
    # At least the last prompt's whole blocks, all but its own three tokens and the one before.
    least = (len(conversation) - 4) // block_size * block_size
    assert hits >= least if prefix_caching else hits == 0


def test_no_stop_token_is_generated_before_min_tokens(
    checkpoint: Path, alone: dict[int, list[int]]
) -> None:
    stop = alone[1][0]
    core = make_core(checkpoint, blocks=50)
    for least in (0, 5):
        request = make_request(
            least + 1,
            prompt=[1, 2, 3],
            max_tokens=20,
            temperature=0.0,
            stop_token_ids=(stop,),
            min_tokens=least,
        )
        [tokens] = generate(core, [request]).values()
        assert stop not in tokens[:least]
        assert (tokens == [stop]) == (least == 0)
