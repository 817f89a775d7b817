"""The table of a stream's life: every cell decided, printed in the docs, and true of a registry."""

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ipc.messages import (
    PROTOCOL_VERSION,
    Abort,
    ChatFormat,
    ErrorResponse,
    Fail,
    Finish,
    FrontendToWorker,
    Goodbye,
    Hello,
    Open,
    Outputs,
    Owner,
    Released,
    Step,
    Tokens,
    WorkerStatus,
)
from postproc_workers import lifecycle
from postproc_workers.lifecycle import (
    TRANSITIONS,
    Effect,
    Event,
    Reason,
    State,
    Transition,
    table_as_markdown,
)
from postproc_workers.registry import Registry
from postproc_workers.testkit.model import ScriptedProcessor

DOCS = Path(__file__).parents[2] / "docs" / "lifecycle.md"
OWNER = Owner(1, 1)
BAD = ScriptedProcessor.BAD

Reply = Outputs | Released | WorkerStatus | None


def opening(lease: int) -> Open:
    return Open(1, lease, "chatcmpl-1", "fine", 0, 1, ChatFormat(), streaming=True)


def handles(message: FrontendToWorker) -> Callable[[Registry], Reply]:
    return lambda registry: registry.handle(OWNER, message, 0)


def idles(registry: Registry) -> Reply:
    registry.release_idle()
    expired = registry.release_idle()
    assert all(owner == OWNER for owner, _ in expired)
    return expired[0][1] if expired else None


def tokens(ids: list[int], finish: Finish | None = None) -> Callable[[Registry], Reply]:
    return handles(Step([Tokens(1, 1, 0, ids, finish)]))


ERROR = ErrorResponse(1, 1, "internal", "out of order")
HAPPENINGS: dict[Event, list[Callable[[Registry], Reply]]] = {
    Event.OPEN: [handles(opening(lease=2))],
    Event.TOKENS: [tokens([1, 2])],
    Event.FINAL: [
        tokens([1, 2], Finish("stop")),
        tokens([], Finish("length")),
        tokens([ScriptedProcessor.STOP]),
    ],
    Event.FAIL: [handles(Fail(1, 1, "server_error", "gone")), handles(Step([], (ERROR,)))],
    Event.EXCEPTION: [tokens([1, BAD]), tokens([BAD], Finish("stop"))],
    Event.ABORT: [handles(Abort(1, 1))],
    Event.MOVED: [handles(Abort(1, 1, moved=True))],
    Event.OWNER_LOST: [
        handles(Goodbye()),
        handles(Hello(PROTOCOL_VERSION, OWNER)),
        handles(Hello(PROTOCOL_VERSION, Owner(1, 2))),
    ],
    Event.IDLE: [idles],
}
CELLS = [
    pytest.param(state, event, happens, id=f"{state.value}-{event.value}-{number}")
    for state in State
    for event in Event
    for number, happens in enumerate(HAPPENINGS[event])
]


@dataclass(frozen=True)
class Counts:
    """What a registry counts of what has happened."""

    live: int
    stale: int
    released: dict[str, int]

    @classmethod
    def of(cls, registry: Registry) -> "Counts":
        status = registry.statistics()
        return cls(status.live, status.stale, status.released)


def test_every_cell_is_decided() -> None:
    assert set(TRANSITIONS) == set(State)
    for cells in TRANSITIONS.values():
        assert set(cells) == set(Event)


def test_every_reason_has_its_cell() -> None:
    reasons = {cell.reason for cells in TRANSITIONS.values() for cell in cells.values()}
    assert reasons == {None, *Reason}


def test_only_open_creates_and_only_a_reason_releases() -> None:
    for state, cells in TRANSITIONS.items():
        for event, cell in cells.items():
            created = state is State.ABSENT and cell.state is State.LIVE
            ended = state is State.LIVE and cell.state is State.ABSENT
            assert created == (state is State.ABSENT and event is Event.OPEN)
            assert (cell.reason is not None) == (
                ended or (state, event) == (State.LIVE, Event.OPEN)
            )


@pytest.mark.parametrize(("state", "event", "happens"), CELLS)
def test_a_registry_does_what_the_table_says(
    state: State, event: Event, happens: Callable[[Registry], Reply]
) -> None:
    registry = Registry(ScriptedProcessor)
    registry.owner_arrived(OWNER)
    registry.open(OWNER, opening(lease=1), 0)
    if state is State.ABSENT:
        registry.abort(OWNER, Abort(1, 1))
    before = Counts.of(registry)
    reply = happens(registry)
    after = Counts.of(registry)
    cell = TRANSITIONS[state][event]
    if cell.effect is Effect.IMPOSSIBLE:
        # Nothing is processed for a stream that is not there: its tokens are merely stale.
        cell = TRANSITIONS[state][Event.TOKENS]
    assert after.live == (cell.state is State.LIVE)
    assert after.released == released_once_more(before, cell)
    assert (after.stale > before.stale) == (cell.effect is Effect.COUNT_STALE)
    if cell.effect is Effect.COUNT_STALE:
        assert reply is None
    else:
        assert effect_of(reply) is cell.effect


def released_once_more(before: Counts, cell: Transition) -> dict[str, int]:
    more = {cell.reason.value: before.released[cell.reason.value] + 1} if cell.reason else {}
    return before.released | more


def effect_of(reply: Reply) -> Effect:
    if isinstance(reply, Released):
        return Effect.NOTICE
    if not isinstance(reply, Outputs):
        return Effect.NOTHING
    [output] = reply.outputs
    return Effect.OUTPUT if output.terminal is None else Effect.TERMINAL_OUTPUT


def test_the_docs_hold_the_printed_table(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(lifecycle.__file__, run_name="__main__")
    printed = capsys.readouterr().out
    assert printed == table_as_markdown()
    after_begin = DOCS.read_text().split("<!-- table -->\n")[1]
    assert after_begin.split("<!-- end of table -->")[0] == printed


def test_the_docs_name_every_reason_and_event() -> None:
    text = DOCS.read_text()
    for name in (*Reason, *Event):
        assert name.value in text
