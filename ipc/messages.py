"""The messages between frontend, engine and post-processing workers.

Each direction of each link has one tagged union, named after it (`FrontendToEngine`, ...). The
structs are frozen, array-like (a MessagePack array whose first element is the tag) and untracked
by the garbage collector. Append new fields last, with a default: old peers then still decode.

The owner of a stream (a frontend's id and epoch) is not a field: it is what the peer proved with
`Hello` on its connection, so no message can claim to be somebody else's.
"""

from typing import Literal

from msgspec import Struct

PROTOCOL_VERSION = 3
"""Raised with every change that an older peer would misread."""


class Message(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Base of everything on the wire."""


# --- every link --------------------------------------------------------------------------------


class Owner(Message, frozen=True):
    """Who mints stream ids and leases: one life of one frontend. `epoch` grows at each start."""

    frontend: int
    epoch: int


class Hello(Message, frozen=True, tag="hello"):
    """First message of a frontend on each of its connections."""

    version: int
    owner: Owner


class Refused(Message, frozen=True, tag="refused"):
    """The connection is of no use. `permanent`: neither is another one, the two do not fit."""

    reason: str
    permanent: bool = True


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Sent by a frontend every second; answered with the peer's status."""


class Goodbye(Message, frozen=True, tag="goodbye"):
    """An orderly leave: the peer releases all that the owner still holds."""


# --- frontend -> engine ------------------------------------------------------------------------


class Sampling(Message, frozen=True):
    """How one sequence is sampled. `temperature` 0 is greedy; None switches a filter off.

    `presence_penalty` and `frequency_penalty` are subtracted from the logits of tokens that were
    generated (once, and per occurrence), as OpenAI's API has it; `repetition_penalty` divides
    positive logits of tokens of prompt and output, and multiplies negative ones. `logit_bias` is
    added. With `logprobs` each token comes with its log-probability and those of the `logprobs`
    most likely tokens.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None


class Grammar(Message, frozen=True):
    """What a text must match: a JSON schema as JSON text, a regular expression, or a grammar in
    the Lark syntax of llguidance."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str


class Constraint(Message, frozen=True):
    """What a turn must be like; its reasoning is always free.

    `final` is for the text of the final message; clients read all that is said as that, so there
    are no preambles then. `calls` are the tools that can be called, by
    name (`Open.tools` tells its form), with the grammars of their arguments; None leaves a text
    free. Those of the tools in `custom` are no JSON. `must_call` lets the turn end only in a call.
    """

    final: Grammar | None = None
    calls: dict[str, Grammar | None] = {}
    must_call: bool = False
    custom: tuple[str, ...] = ()


class GenerationRequest(Message, frozen=True, tag="generate"):
    """Start a sequence. Its tokens come back in `Step` frames addressed to `worker`.

    Of a tenant's requests those with the lowest `priority` go first. Cached blocks are shared only
    between requests of one tenant with the same `cache_salt`.
    """

    stream_id: int
    lease: int
    worker: int
    prompt: list[int]
    sampling: Sampling
    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""
    constraint: Constraint | None = None


class Cancel(Message, frozen=True, tag="cancel"):
    """The stream is over: drop its sequence, or what is kept of an ended one. Sent once for every
    stream, whatever ended it; idempotent, answered by nothing."""

    stream_id: int
    lease: int


class Reassign(Message, frozen=True, tag="reassign"):
    """The stream has moved to `worker`, under a new lease: say all of its tokens again, from the
    first, and its ending if it has ended, and go on from there."""

    stream_id: int
    worker: int
    lease: int


class WatchBlocks(Message, frozen=True, tag="watch_blocks"):
    """Tell with `BlockEvents` what is in the prefix cache, and every change of it."""


FrontendToEngine = Hello | GenerationRequest | Cancel | Reassign | WatchBlocks | Heartbeat | Goodbye


# --- engine -> frontend ------------------------------------------------------------------------
# Two parts a message: [worker index as text, `Step`], which the frontend passes on undecoded, or
# [empty, one of `EngineToFrontend`].


class EngineInfo(Message, frozen=True, tag="engine_info"):
    """What the frontend must know of the model. `context_length` is prompt plus output tokens,
    `block_size` the tokens that a hash of `ipc.block_hashes` names, 0 if nothing is cached."""

    version: int
    model: str
    context_length: int
    vocabulary_size: int
    block_size: int = 0


class EngineStatus(Message, frozen=True, tag="engine_status"):
    """Answer to a heartbeat. Counters run from the engine's start; `kept` are streams whose
    sequences have ended, but that no frontend has cancelled yet.

    Free blocks include the `cached_blocks`, which no sequence uses at the moment.
    """

    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    steps: int
    generated_tokens: int
    prompt_tokens: int
    preemptions: int
    errors: int
    rejected: int
    kept: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    cached_blocks: int = 0
    evicted_blocks: int = 0


class BlockEvents(Message, frozen=True, tag="block_events"):
    """Hashes of blocks that the prefix cache has now, or has no more. Number 0 tells all that it
    has, the others what changed since; nothing is lost while the numbers have no gap."""

    number: int
    stored: list[bytes]
    removed: list[bytes]


EngineToFrontend = EngineInfo | Refused | EngineStatus | BlockEvents


class Finish(Message, frozen=True):
    """Why a sequence ended. A stop token that ended it is its last token."""

    reason: Literal["stop", "length"]


class TokenLogprobs(Message, frozen=True):
    """A token's log-probability, and the most likely tokens with theirs, best first."""

    logprob: float
    top: list[tuple[int, float]]


class Tokens(Message, frozen=True):
    """New tokens of one sequence; `start` is the place of the first among its output tokens.

    The message with the first of them tells how many tokens of the prompt came from the prefix
    cache. `logprobs` has an entry a token, if they were asked for.
    """

    stream_id: int
    lease: int
    start: int
    ids: list[int]
    finish: Finish | None = None
    cached_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None


class ErrorResponse(Message, frozen=True):
    """The end of one sequence by an error. `invalid_request` is the client's mistake."""

    stream_id: int
    lease: int
    code: Literal["invalid_request", "context_length_exceeded", "overloaded", "internal"]
    message: str


class Step(Message, frozen=True, tag="step"):
    """What one engine step produced for one (frontend, worker); tokens come before errors."""

    tokens: list[Tokens]
    errors: tuple[ErrorResponse, ...] = ()


# --- frontend -> worker ------------------------------------------------------------------------


class ResponsesFormat(Message, frozen=True, tag="responses"):
    """`POST /v1/responses`. `echo` is the members of the response object that repeat the request,
    as JSON text without the braces around them.

    With `summary` the reasoning is told as its summary, too; if it is `sealed`, also encrypted with
    `seal_key`, for the client that sends it back. `queued`: the response began in the background.
    `retrieved`: it is made again from its record, and its failure is told as a response, too. With
    `error_event` a stream that fails has an `error` event before `response.failed`.
    """

    echo: bytes
    summary: bool = False
    sealed: bool = False
    seal_key: bytes = b""
    queued: bool = False
    retrieved: bool = False
    error_event: bool = True


class ChatFormat(Message, frozen=True, tag="chat"):
    """`POST /v1/chat/completions`. `reasoning_member` is the member that the reasoning goes to.

    With `part` the stream is one choice of several, the one with that number: it has no usage
    and no end mark, and unstreamed it is the choice alone.
    """

    include_usage: bool = False
    reasoning_member: Literal["reasoning", "reasoning_content"] = "reasoning"
    part: int | None = None


class MessagesFormat(Message, frozen=True, tag="messages"):
    """`POST /v1/messages`. `omitted` thinking is told by its signature alone; without `preambles`
    they are not told at all."""

    thinking: Literal["shown", "omitted", "hidden"] = "shown"
    preambles: bool = True


class CompletionFormat(Message, frozen=True, tag="completion"):
    """`POST /v1/completions`: what the model says is read as plain text. `echo` comes before it.

    With `part` the stream is one choice of several, as in `ChatFormat`.
    """

    include_usage: bool = False
    echo: str = ""
    part: int | None = None


OutputFormat = ResponsesFormat | ChatFormat | MessagesFormat | CompletionFormat


class Resume(Message, frozen=True):
    """How far a moved stream had come: its client has all that its first `tokens` tokens made, and
    no event yet with the number `next_sequence`. `begun`: also the opening events."""

    tokens: int
    next_sequence: int
    begun: bool


class Open(Message, frozen=True, tag="open"):
    """Create the state of a stream. Everything its output depends on, but for its tokens.

    `tools` are the names of the tools that may be called: of functions the bare name, of those in
    a namespace of their own `NAMESPACE.NAME`. What calls of the `custom` ones hold is no JSON.
    With `keep` the terminal output brings the `Record` of the stream. With `resume` the stream
    comes from another worker: its tokens come again from the first, and what the client has
    already is not said again.
    """

    stream_id: int
    lease: int
    response_id: str
    model: str
    created: int
    prompt_tokens: int
    format: OutputFormat
    streaming: bool
    tools: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    parallel_tool_calls: bool = True
    tenant: str = ""
    resume: Resume | None = None
    custom: tuple[str, ...] = ()
    keep: bool = False


FailCode = Literal["server_error", "overloaded", "cancelled"]


class Fail(Message, frozen=True, tag="fail"):
    """End a stream with an error that its client is told, or because it was `cancelled`."""

    stream_id: int
    lease: int
    code: FailCode
    message: str


class Abort(Message, frozen=True, tag="abort"):
    """End a stream whose client is gone, or that has `moved` to another worker; nothing is sent
    for it any more."""

    stream_id: int
    lease: int
    moved: bool = False


FrontendToWorker = Hello | Open | Step | Fail | Abort | Heartbeat | Goodbye


# --- worker -> frontend ------------------------------------------------------------------------


class WorkerInfo(Message, frozen=True, tag="worker_info"):
    """Answer to `Hello`."""

    version: int
    worker: int
    pid: int


class WorkerStatus(Message, frozen=True, tag="worker_status"):
    """Answer to a heartbeat: the registry's statistics."""

    live: int
    opened: int
    released: dict[str, int]
    stale: int
    not_owned: int
    rejected: int
    recovered: dict[str, int]


class Terminal(Message, frozen=True):
    """A stream's end as its client sees it. `status` is the HTTP status of an unstreamed reply,
    `message` what an end by an error that could not be encoded is to say. `record` is an encoded
    `Record`, if one was to be kept."""

    reason: Literal["final", "error"]
    status: int
    output_tokens: int
    stopped_early: bool = False
    message: str = ""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    record: bytes = b""


class Output(Message, frozen=True):
    """Bytes for one client. `tokens` is how many of the stream's tokens all bytes up to here
    account for, `next_sequence` the number that its next event will carry. `resumed` says that a
    moved stream has caught up with the tokens that there were."""

    stream_id: int
    lease: int
    tokens: int
    next_sequence: int
    body: bytes
    terminal: Terminal | None = None
    resumed: bool = False


class Outputs(Message, frozen=True, tag="outputs"):
    """All that one message to a worker caused, in order."""

    outputs: list[Output]


class Released(Message, frozen=True, tag="released"):
    """A stream that ends (or an Open that is refused) without a terminal output."""

    stream_id: int
    lease: int
    reason: Literal["not_owned", "expired", "moved"]


# --- what is kept ------------------------------------------------------------------------------


class Ending(Message, frozen=True):
    """How a stream ended: the engine's `finish`, or the failure (HTTP status, type, code, message)
    that its client was told. `at` is in unix seconds; `cut` says that the turn was not whole."""

    at: int
    finish: Finish | None = None
    failure: tuple[int, str, str, str] | None = None
    cut: bool = False


class Record(Message, frozen=True):
    """A stream that has ended: all that its output was made of, so that it can be made again. Of
    one that has not (no `ending`) there are no tokens yet."""

    opening: Open
    tokens: list[int] = []
    ending: Ending | None = None
    cached_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None


WorkerToFrontend = WorkerInfo | Refused | Outputs | Released | WorkerStatus
