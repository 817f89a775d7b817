"""A request on the engine's side: its tokens, how far they are computed, and its blocks."""

from dataclasses import dataclass, field

from engine.constraint import TurnConstraint
from engine.ledger import Entry
from engine.penalties import Penalties, penalties_of
from ipc.messages import Finish, Sampling
from ipc.vocabulary import CALL, ENDOFTEXT, RETURN

END_TOKENS = frozenset({RETURN, CALL, ENDOFTEXT})
"""The end of an answer, of a call, and what gpt-oss's generation_config.json names besides."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One running or waiting sequence, and the entry of its stream in the ledger.

    `tokens` are the prompt and what was generated; `length_limit` bounds them, `seed` is the
    request's or was drawn for it. `order` is its place among its tenant's: priority, then arrival.
    `cached_tokens` of the prompt were cached when it first started. `last_step` computed a token
    that it had generated.

    The keys and values of the first `computed` tokens are cached in the blocks of `tables`, one a
    group of layers, which have room for `room` tokens. `hashes` name whole blocks of its tokens,
    and the first `named` of them are in the cache under these names.
    """

    entry: "Entry[Sequence]"
    prompt_tokens: int
    tokens: list[int]
    sampling: Sampling
    seed: int
    length_limit: int
    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""
    constraint: TurnConstraint | None = None
    order: tuple[int, int] = (0, 0)
    admitted: bool = False
    last_step: int = 0
    cached_tokens: int | None = None
    computed: int = 0
    room: int = 0
    tables: list[list[int]] = field(default_factory=list)
    root: bytes = b""
    hashes: list[bytes] = field(default_factory=list)
    named: int = 0
    stop_tokens: frozenset[int] = field(init=False)
    penalties: Penalties | None = field(init=False)

    def __post_init__(self) -> None:
        end_tokens = frozenset[int]() if self.sampling.ignore_eos else END_TOKENS
        self.stop_tokens = end_tokens.union(self.sampling.stop_token_ids)
        self.penalties = penalties_of(self.sampling, self.tokens)

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
        """Whether the next token may be a stop token; where a constraint says what comes next, it
        says that too."""
        return self.constraint is not None or self.output_tokens >= self.sampling.min_tokens

    def append(self, token: int) -> Finish | None:
        """Add a generated token; says whether, and why, the sequence ends with it."""
        self.tokens.append(token)
        if self.constraint is not None:
            self.constraint.accept(token)
        if self.penalties is not None:
            self.penalties.add(token)
        if token in self.stop_tokens:
            return Finish("stop")
        if len(self.tokens) >= self.length_limit:
            return Finish("length")
        return None
