"""Log-probabilities of tokens as OpenAI's APIs tell them."""

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from ipc.messages import TokenLogprobs
from ipc.vocabulary import FIRST_SPECIAL, special_name
from postproc_workers.tokens import token_table

Scored = tuple[int, TokenLogprobs]
"""A token and its log-probabilities."""


def token_name(token: int) -> bytes:
    """The bytes of a token; of a special one those of its name."""
    if 0 <= token < FIRST_SPECIAL:
        return token_table().raw(token)
    return special_name(token).encode()


def logprobs_json(scored: Iterable[Scored], *, with_bytes: bool) -> bytes:
    """A JSON array with an object for each token: `token`, `logprob`, `top_logprobs`, and `bytes`
    where the API has them. A token that is no whole UTF-8 has U+FFFD in its text."""
    return b"[%b]" % b",".join(_scored(token, entry, with_bytes) for token, entry in scored)


def _scored(token: int, entry: TokenLogprobs, with_bytes: bool) -> bytes:
    top = b",".join(b"{%b}" % _members(other, logprob, with_bytes) for other, logprob in entry.top)
    return b'{%b,"top_logprobs":[%b]}' % (_members(token, entry.logprob, with_bytes), top)


def _members(token: int, logprob: float, with_bytes: bool) -> bytes:
    return b'%b"logprob":%b' % (_token_members(token, with_bytes), msgspec.json.encode(logprob))


@lru_cache(maxsize=65_536)
def _token_members(token: int, with_bytes: bool) -> bytes:
    raw = token_name(token)
    text = msgspec.json.encode(raw.decode(errors="replace"))
    if not with_bytes:
        return b'"token":%b,' % text
    return b'"token":%b,"bytes":%b,' % (text, msgspec.json.encode(list(raw)))
