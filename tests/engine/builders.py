"""Short ways to make the objects that engine tests are about."""

from typing import Any

from engine.sequence import Sequence
from ipc.messages import EngineInfo, GenerationRequest, Owner, Sampling

OWNER = Owner(frontend=1, epoch=1)
INFO = EngineInfo(version=1, model="tiny", context_length=64, vocabulary_size=300)


def make_request(
    stream_id: int = 1, lease: int | None = None, prompt: list[int] | None = None, **sampling: Any
) -> GenerationRequest:
    """A request with the stream id as its lease, unless one is given."""
    return GenerationRequest(
        stream_id=stream_id,
        lease=stream_id if lease is None else lease,
        worker=0,
        prompt=[5, 6, 7] if prompt is None else prompt,
        sampling=Sampling(**({"max_tokens": 4} | sampling)),
    )


def make_sequence(prompt_tokens: int, max_tokens: int = 1000, **sampling: Any) -> Sequence:
    """A waiting sequence."""
    return Sequence(
        owner=OWNER,
        stream_id=1,
        lease=1,
        worker=0,
        prompt_tokens=prompt_tokens,
        tokens=[1] * prompt_tokens,
        sampling=Sampling(max_tokens=max_tokens, **sampling),
        seed=0,
        length_limit=prompt_tokens + max_tokens,
    )
