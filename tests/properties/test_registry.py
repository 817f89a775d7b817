"""The registry against its model: any messages in any order, each of them also late and again."""

import logging
from collections.abc import Iterator
from weakref import WeakSet

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from ipc.messages import (
    PROTOCOL_VERSION,
    Abort,
    ChatFormat,
    ErrorResponse,
    Fail,
    Finish,
    Goodbye,
    Hello,
    Open,
    Output,
    Outputs,
    Owner,
    Released,
    Step,
    Tokens,
    WorkerStatus,
)
from postproc_workers.registry import Registry
from tests.properties.registry_model import (
    ModelMessage,
    ModelStream,
    RegistryModel,
    ScriptedProcessor,
)

OWNERS = [Owner(frontend, epoch) for frontend in (0, 1) for epoch in (1, 2)]
STREAM_IDS = st.integers(1, 3)
LEASES = st.integers(0, 12)
ORDINARY = st.sampled_from([*[1, 2, 3] * 6, ScriptedProcessor.STOP, ScriptedProcessor.BAD])
FINISHES = st.sampled_from([None, None, None, Finish("stop"), Finish("length")])
MODELS = st.sampled_from(
    ["fine"] * 9 + ["fails to make", "fails to open", "fails to fail", "fails to fail"]
)

Delivery = tuple[Owner, ModelMessage]


@pytest.fixture(scope="module", autouse=True)
def no_kept_tracebacks() -> Iterator[None]:
    """Captured log records would hold on to the streams that failed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("postproc_workers.registry"), "disabled", True)
        yield


class RegistryMachine(RuleBasedStateMachine):
    """Every message ever made stays in `messages`, and can come again at any later time."""

    messages = Bundle("messages")

    def __init__(self) -> None:
        super().__init__()
        self.alive: WeakSet[ScriptedProcessor] = WeakSet()
        self.registry = Registry(self.make_processor)
        self.model = RegistryModel(ScriptedProcessor)
        self.next_lease = 0

    def make_processor(self, opened: Open) -> ScriptedProcessor:
        processor = ScriptedProcessor(opened)
        self.alive.add(processor)
        return processor

    # --- messages ------------------------------------------------------------------------------

    @initialize(target=messages)
    def begin(self) -> MultipleResults[Delivery]:
        hellos = [self.deliver(owner, hello(owner)) for owner in OWNERS[::2]]
        opens = [self.open(owner, 1, "fine") for owner in OWNERS[::2]]
        return multiple(*hellos, *opens)

    @rule(target=messages, owner=st.sampled_from(OWNERS), comes=st.booleans())
    def owner_comes_or_goes(self, owner: Owner, comes: bool) -> Delivery:
        return self.deliver(owner, hello(owner) if comes else Goodbye())

    @rule(owner=st.sampled_from(OWNERS))
    def owner_lost(self, owner: Owner) -> None:
        self.registry.owner_lost(owner)
        self.model.lose(owner)

    @rule(target=messages, data=st.data(), stream_id=STREAM_IDS, model=MODELS)
    def opens(self, data: st.DataObject, stream_id: int, model: str) -> Delivery:
        owner = data.draw(st.sampled_from(self.model.present or OWNERS))
        return self.open(owner, stream_id, model)

    @precondition(lambda self: self.model.live)
    @rule(target=messages, data=st.data(), together=st.booleans())
    def next_tokens(self, data: st.DataObject, together: bool) -> Delivery:
        """The next tokens of a live stream, or of all that its owner has."""
        first = self.draw_live(data)
        streams = [s for s in self.model.live if s.owner == first.owner] if together else [first]
        return self.deliver(first.owner, Step([draw_tokens(data, s) for s in streams]))

    @precondition(lambda self: self.model.live)
    @rule(target=messages, data=st.data(), shift=st.sampled_from((-2, -1, 1)))
    def misplaced_tokens(self, data: st.DataObject, shift: int) -> Delivery:
        """Tokens that came already, or that come too early."""
        stream = self.draw_live(data)
        return self.deliver(stream.owner, Step([draw_tokens(data, stream, shift)]))

    @precondition(lambda self: self.model.live)
    @rule(target=messages, data=st.data(), tokens=st.booleans())
    def error_response(self, data: st.DataObject, tokens: bool) -> Delivery:
        """An engine's error, with the last tokens in the same step."""
        stream = self.draw_live(data)
        last = [draw_tokens(data, stream)] if tokens else []
        about = stream.opening
        error = ErrorResponse(about.stream_id, about.lease, "internal", "out of order")
        return self.deliver(stream.owner, Step(last, (error,)))

    @precondition(lambda self: self.model.live)
    @rule(target=messages, data=st.data(), silent=st.booleans())
    def frontend_ends_it(self, data: st.DataObject, silent: bool) -> Delivery:
        stream = self.draw_live(data)
        place = (stream.opening.stream_id, stream.opening.lease)
        ending = Abort(*place) if silent else Fail(*place, "server_error", "the engine is gone")
        return self.deliver(stream.owner, ending)

    @rule(
        target=messages,
        owner=st.sampled_from(OWNERS),
        stream_id=STREAM_IDS,
        lease=LEASES,
        kind=st.sampled_from(("tokens", "fail", "abort", "open", "error")),
    )
    def any_message(self, owner: Owner, stream_id: int, lease: int, kind: str) -> Delivery:
        """A message of anybody about any stream under any lease."""
        made: dict[str, ModelMessage] = {
            "tokens": Step([Tokens(stream_id, lease, 0, [1, 2])]),
            "fail": Fail(stream_id, lease, "overloaded", "too slow"),
            "abort": Abort(stream_id, lease),
            "open": opening(stream_id, lease, "fine"),
            "error": Step([], (ErrorResponse(stream_id, lease, "overloaded", "full"),)),
        }
        return self.deliver(owner, made[kind])

    @rule(delivery=messages)
    def again(self, delivery: Delivery) -> None:
        self.deliver(*delivery)

    @rule(delivery=messages, owner=st.sampled_from(OWNERS))
    def again_from_another(self, delivery: Delivery, owner: Owner) -> None:
        if not isinstance(delivery[1], Hello):
            self.deliver(owner, delivery[1])

    @rule()
    def idle_sweep(self) -> None:
        expired = self.registry.release_idle()
        expected = [
            (s.owner, Released(s.opening.stream_id, s.opening.lease, "expired"))
            for s in self.model.sweep()
        ]
        assert sorted(expired, key=repr) == sorted(expected, key=repr)

    def draw_live(self, data: st.DataObject) -> ModelStream:
        return data.draw(st.sampled_from(self.model.live))

    def open(self, owner: Owner, stream_id: int, model: str) -> Delivery:
        self.next_lease += 1
        return self.deliver(owner, opening(stream_id, self.next_lease, model))

    def deliver(self, owner: Owner, message: ModelMessage) -> Delivery:
        before = self.registry.statistics()
        reply = self.registry.handle(owner, message, now=0)
        self.model.handle(owner, message)
        outputs = reply.outputs if isinstance(reply, Outputs) else []
        self.l3_one_terminal_and_nothing_after(owner, outputs)
        if isinstance(reply, Released):
            assert isinstance(message, Open)
            assert reply == Released(message.stream_id, message.lease, "not_owned")
        self.l1_opens_only(message, before)
        self.l4_owner_only(before, outputs)
        return owner, message

    # --- checks of one message -----------------------------------------------------------------

    def l1_opens_only(self, message: ModelMessage, before: WorkerStatus) -> None:
        if not isinstance(message, Open):
            assert self.registry.opened == before.opened
            assert self.registry.live <= before.live

    def l3_one_terminal_and_nothing_after(self, owner: Owner, outputs: list[Output]) -> None:
        for output in outputs:
            life = self.model.find_life(owner, output.stream_id, output.lease)
            assert life.released in (None, "final", "error")
            assert not life.terminal_sent
            assert output.tokens <= len(life.tokens)
            life.sent += output.body
            if output.terminal is not None:
                life.terminal_sent = True
                assert output.terminal.reason == life.released

    def l4_owner_only(self, before: WorkerStatus, outputs: list[Output]) -> None:
        """Whatever was refused has changed nothing but a counter."""
        after = self.registry.statistics()
        counters = {"stale": after.stale, "not_owned": after.not_owned}
        if counters["not_owned"] > before.not_owned and not outputs:
            untouched = msgspec.structs.replace(before, **counters)
            assert after == untouched

    # --- checks of all that there is -----------------------------------------------------------

    @invariant()
    def l2_released_once(self) -> None:
        assert +self.registry.released == +self.model.released
        assert self.registry.opened == self.model.opened

    @invariant()
    def l4_refusals_are_counted(self) -> None:
        assert (self.registry.stale, self.registry.not_owned) == (
            self.model.stale,
            self.model.not_owned,
        )

    @invariant()
    def l5_nothing_left(self) -> None:
        assert self.registry.live == len(self.model.live)
        assert self.registry.live == self.registry.opened - self.registry.released.total()
        assert len(self.alive) == self.registry.live

    @invariant()
    def l6_pure_output_and_l7_numbered(self) -> None:
        """What a client has is what its tokens make when they come all at once."""
        for life in self.model.lives:
            expected = life.expected_output(ScriptedProcessor)
            if life.released in (None, "final", "error"):
                assert life.sent == expected
            else:
                assert expected.startswith(life.sent)
            numbers = [int(line.split()[0]) for line in life.sent.splitlines()]
            assert numbers == list(range(len(numbers)))

    @invariant()
    def l8_contained(self) -> None:
        """What failed has ended for its client, and all others live on or ended by themselves."""
        for life in self.model.lives:
            assert life.terminal_sent == (life.released in ("final", "error"))

    @invariant()
    def l9_bounded(self) -> None:
        assert len(self.registry._frontends) <= len({owner.frontend for owner in OWNERS})

    def teardown(self) -> None:
        for owner in OWNERS:
            self.registry.owner_lost(owner)
        assert self.registry.live == 0
        assert len(self.alive) == 0


def hello(owner: Owner) -> Hello:
    return Hello(PROTOCOL_VERSION, owner)


def opening(stream_id: int, lease: int, model: str) -> Open:
    return Open(stream_id, lease, "chatcmpl-1", model, 0, 1, ChatFormat(), streaming=True)


def draw_tokens(data: st.DataObject, stream: ModelStream, shift: int = 0) -> Tokens:
    about = stream.opening
    place = max(0, len(stream.tokens) + shift)
    ids = data.draw(st.lists(ORDINARY, max_size=4)) + [1] * max(0, -shift)
    return Tokens(about.stream_id, about.lease, place, ids, data.draw(FINISHES))


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=300, stateful_step_count=40)
