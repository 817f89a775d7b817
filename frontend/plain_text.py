"""Text to tokens and back, without markup, in parts: whoever waits meanwhile has a turn between
two of them."""

import asyncio
from collections.abc import Sequence

from frontend.errors import InvalidRequestError
from frontend.prompt import PromptRenderer, PromptTooLongError
from ipc.messages import EngineInfo
from postproc_workers.logprobs import token_name
from postproc_workers.tokens import GlyphDecoder

DECODED_AT_ONCE = 8_192
"""Tokens: about 5 ms."""


async def encode_text(
    renderer: PromptRenderer, text: str, *, special: bool = False, limit: int | None = None
) -> list[int]:
    """The tokens of a text. Raises PromptTooLongError as soon as there are more than `limit`."""
    tokens: list[int] = []
    for part in renderer.encode_parts(text, special=special):
        tokens += part
        if limit is not None and len(tokens) > limit:
            raise PromptTooLongError
        await asyncio.sleep(0)
    return tokens


async def decode_tokens(tokens: Sequence[int]) -> str:
    """The text of tokens, with special ones by their names. Bytes that are no UTF-8 become
    U+FFFD."""
    decoder = GlyphDecoder()
    pieces = []
    for start in range(0, len(tokens), DECODED_AT_ONCE):
        raw = b"".join(map(token_name, tokens[start : start + DECODED_AT_ONCE]))
        pieces.append(decoder.feed(raw))
        await asyncio.sleep(0)
    return "".join(pieces) + decoder.finish()


def check_tokens(tokens: Sequence[int], engine: EngineInfo, param: str) -> None:
    """Raise InvalidRequestError for a token that is not of the vocabulary."""
    highest = max(tokens, default=0)
    if highest >= engine.vocabulary_size:
        raise InvalidRequestError(
            f"Invalid '{param}': the vocabulary has no token {highest}.", param=param
        )
