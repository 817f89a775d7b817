"""Short ways to make the objects that engine tests are about."""

from itertools import count
from typing import Any

from engine.block_pool import BlockPool
from engine.cache_layout import layout_of
from engine.kv_cache import KvCache
from engine.ledger import Entry
from engine.prefix_cache import PrefixCache
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from ipc.messages import EngineInfo, GenerationRequest, Owner, Sampling

OWNER = Owner(frontend=1, epoch=1)
BLOCK = 4
_token = count(1)
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


def make_sequence(
    prompt: int | list[int], max_tokens: int = 1000, tenant: str = "", priority: int = 0
) -> Sequence:
    """A waiting sequence; a prompt that is a number is that many tokens of no other sequence."""
    tokens = [next(_token)] * prompt if isinstance(prompt, int) else list(prompt)
    return Sequence(
        entry=Entry(OWNER, stream_id=1, lease=1, worker=0),
        prompt_tokens=len(tokens),
        tokens=tokens,
        sampling=Sampling(max_tokens=max_tokens),
        seed=0,
        length_limit=len(tokens) + max_tokens,
        tenant=tenant,
        priority=priority,
    )


def make_scheduler(
    blocks: int = 12,
    max_sequences: int = 4,
    max_step_tokens: int = 8,
    windows: tuple[int | None, ...] = (None,),
    **options: Any,
) -> Scheduler:
    """A scheduler over blocks of `BLOCK` tokens."""
    cache = KvCache(
        PrefixCache(BlockPool(blocks)), BLOCK, layout_of(windows), max_step_tokens, caching=True
    )
    return Scheduler(cache, max_sequences, max_step_tokens, **options)
