"""L1 to L9 in a small scope, exhaustively: every interleaving of 6 messages about up to 2 owners,
2 streams and 2 lives, by plain search. Two orders that lead to one state are continued once."""

import logging
from collections import deque
from collections.abc import Iterator
from itertools import product

import pytest

from ipc.messages import Abort, ErrorResponse, Fail, Finish, Goodbye, Owner, Step, Tokens
from postproc_workers.registry import Registry
from postproc_workers.testkit.machine import RegistryMachine, hello, machine_for, opening
from postproc_workers.testkit.model import ModelMessage

OWNERS = (Owner(0, 1), Owner(1, 1))
MESSAGES = 6

Delivery = tuple[Owner, ModelMessage]
State = tuple[object, ...]


@pytest.fixture(autouse=True)
def no_kept_tracebacks() -> Iterator[None]:
    """Captured log records would hold on to the streams that failed."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def alphabet() -> list[Delivery]:
    """Every message that there can be in this scope."""
    messages: list[Delivery] = [(owner, Goodbye()) for owner in OWNERS]
    for owner, stream, lease in product(OWNERS, (1, 2), (1, 2)):
        about: list[ModelMessage] = [
            opening(stream, lease, "fine"),
            Step([Tokens(stream, lease, 0, [1])]),
            Step([Tokens(stream, lease, 1, [2], Finish("stop"))]),
            Step([], (ErrorResponse(stream, lease, "internal", "it broke"),)),
            Fail(stream, lease, "server_error", "it is gone"),
            Abort(stream, lease),
        ]
        messages += [(owner, message) for message in about]
    return messages


def state_of(machine: RegistryMachine) -> State:
    """All of a registry that what comes later can depend on."""
    registry = machine.registry
    assert isinstance(registry, Registry)
    return tuple(
        (
            (number, owned.present, owned.highest_lease),
            *sorted((s.stream_id, s.lease, s.position) for s in owned.live.values()),
        )
        for number, owned in sorted(registry._frontends.items())
    )


def replay(path: tuple[Delivery, ...]) -> RegistryMachine:
    """A fresh registry and its model after these messages; each is checked as it comes."""
    machine = machine_for(Registry)()
    for owner in OWNERS:
        machine.deliver(owner, hello(owner))
    for owner, message in path:
        machine.deliver(owner, message)
    return machine


def check(machine: RegistryMachine) -> None:
    machine.l2_released_once()
    machine.l4_refusals_are_counted()
    machine.l5_nothing_left()
    machine.l6_pure_output_and_l7_numbered()
    machine.l8_contained()


def test_l1_to_l9_hold_after_every_interleaving() -> None:
    messages = alphabet()
    reached: dict[State, int] = {state_of(replay(())): 0}
    waiting: deque[tuple[Delivery, ...]] = deque([()])
    transitions = 0
    while waiting:
        path = waiting.popleft()
        for message in messages:
            machine = replay((*path, message))
            check(machine)
            transitions += 1
            state = state_of(machine)
            if state not in reached:
                reached[state] = len(path) + 1
                if len(path) + 1 < MESSAGES:
                    waiting.append((*path, message))
    assert max(reached.values()) == MESSAGES
    assert transitions > 10_000, (transitions, len(reached))
