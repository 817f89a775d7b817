"""The life of a stream in a worker: one table of what each event does in each state.

Every cell is decided, and `docs/lifecycle.md` is printed from it (`python -m
postproc_workers.lifecycle`). A released stream leaves nothing behind, so it is `ABSENT` again.
"""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """What a registry holds of a stream."""

    ABSENT = "absent"
    LIVE = "live"


class Event(Enum):
    """What can happen to a stream."""

    OPEN = "Open"
    TOKENS = "Tokens"
    FINAL = "Tokens that finish"
    FAIL = "Fail or ErrorResponse"
    EXCEPTION = "exception in post-processing"
    ABORT = "Abort"
    OWNER_LOST = "owner lost"
    IDLE = "idle too long"


class Reason(Enum):
    """Why a stream was released. Each release has exactly one."""

    FINAL = "final"
    ERROR = "error"
    ABORT = "abort"
    OWNER_LOST = "owner_lost"
    EXPIRED = "expired"
    MOVED = "moved"


class Effect(Enum):
    """What the registry does besides changing the state."""

    NOTHING = "nothing"
    IMPOSSIBLE = "cannot happen"
    OUTPUT = "output"
    TERMINAL_OUTPUT = "terminal output"
    NOTICE = "notice to the owner"
    COUNT_STALE = "count as stale"


@dataclass(frozen=True, slots=True)
class Transition:
    """One cell of the table; `reason` is set where the stream's state is released."""

    state: State
    effect: Effect
    reason: Reason | None = None


_STALE = Transition(State.ABSENT, Effect.COUNT_STALE)
_NOTHING = Transition(State.ABSENT, Effect.NOTHING)

TRANSITIONS: dict[State, dict[Event, Transition]] = {
    State.ABSENT: {
        Event.OPEN: Transition(State.LIVE, Effect.OUTPUT),
        Event.TOKENS: _STALE,
        Event.FINAL: _STALE,
        Event.FAIL: _STALE,
        Event.EXCEPTION: Transition(State.ABSENT, Effect.IMPOSSIBLE),
        Event.ABORT: _STALE,
        Event.OWNER_LOST: _NOTHING,
        Event.IDLE: _NOTHING,
    },
    State.LIVE: {
        # An Open under a newer lease: the stream was moved away and has come back.
        Event.OPEN: Transition(State.LIVE, Effect.OUTPUT, Reason.MOVED),
        Event.TOKENS: Transition(State.LIVE, Effect.OUTPUT),
        Event.FINAL: Transition(State.ABSENT, Effect.TERMINAL_OUTPUT, Reason.FINAL),
        Event.FAIL: Transition(State.ABSENT, Effect.TERMINAL_OUTPUT, Reason.ERROR),
        Event.EXCEPTION: Transition(State.ABSENT, Effect.TERMINAL_OUTPUT, Reason.ERROR),
        Event.ABORT: Transition(State.ABSENT, Effect.NOTHING, Reason.ABORT),
        Event.OWNER_LOST: Transition(State.ABSENT, Effect.NOTHING, Reason.OWNER_LOST),
        Event.IDLE: Transition(State.ABSENT, Effect.NOTICE, Reason.EXPIRED),
    },
}


def table_as_markdown() -> str:
    """The table of docs/lifecycle.md."""
    lines = ["| event | absent | live |", "| --- | --- | --- |"]
    for event in Event:
        cells = [_cell(TRANSITIONS[state][event]) for state in State]
        lines.append(f"| {event.value} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(transition: Transition) -> str:
    if transition.reason is not None:
        change = f"released({transition.reason.value}), then {transition.state.value}"
    else:
        change = transition.state.value
    return f"{change}; {transition.effect.value}"


if __name__ == "__main__":
    print(table_as_markdown(), end="")  # noqa: T201
