"""Words of the vocabulary that stand for any name or text: what the corpus makes its noise of."""

from functools import cache
from random import Random

from ipc.vocabulary import token_bytes


@cache
def words() -> dict[str, int]:
    """Words that are one token both after a space and without one, so that they can be copied.

    To each word, the token that is a space and the word.
    """
    tokens = token_bytes()
    known = set(tokens)
    spaced = (
        (token[1:], number)
        for number, token in enumerate(tokens)
        if len(token) > 3 and token.startswith(b" ") and token[1:] in known
    )
    decoded = ((word.decode("utf-8", "replace"), number) for word, number in spaced)
    return {
        word: number
        for word, number in decoded
        if word.isascii() and word.isalpha() and word[1:].islower()
    }


@cache
def _all() -> tuple[str, ...]:
    return tuple(words())


def any_word(r: Random) -> str:
    """One of about 15,000 words, as the vocabulary has it: in lower case or capitalised."""
    return r.choice(_all())
