"""A request on the engine's side: its tokens, how far they are computed, and its blocks."""

from dataclasses import dataclass, field

from engine.ledger import Entry
from ipc.messages import Finish, Sampling
from ipc.vocabulary import CALL, ENDOFTEXT, RETURN

END_TOKENS = frozenset({RETURN, CALL, ENDOFTEXT})
"""The end of an answer, of a call, and what gpt-oss's generation_config.json names besides."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One running or waiting sequence, and the entry of its stream in the ledger.

    `tokens` are the prompt and what was generated; the keys and values of the first `computed`
    are in the blocks of `table`. `length_limit` bounds `tokens`, `seed` is the request's or was
    drawn for it.
    """

    entry: "Entry[Sequence]"
    prompt_tokens: int
    tokens: list[int]
    sampling: Sampling
    seed: int
    length_limit: int
    computed: int = 0
    table: list[int] = field(default_factory=list)
    stop_tokens: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        end_tokens = frozenset[int]() if self.sampling.ignore_eos else END_TOKENS
        self.stop_tokens = end_tokens.union(self.sampling.stop_token_ids)

    @property
    def output_tokens(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """Tokens that are not computed yet; the last of them gives the next token."""
        return len(self.tokens) - self.computed

    @property
    def may_stop(self) -> bool:
        """Whether the next token may be a stop token."""
        return self.output_tokens >= self.sampling.min_tokens

    def append(self, token: int) -> Finish | None:
        """Add a generated token; says whether, and why, the sequence ends with it."""
        self.tokens.append(token)
        if token in self.stop_tokens:
            return Finish("stop")
        if len(self.tokens) >= self.length_limit:
            return Finish("length")
        return None
