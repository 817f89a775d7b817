"""A registry against its model: any messages in any order, each of them also late and again.

`machine_for` makes the state machine for any registry; its checks bear the names of the
invariants in docs/invariants.md.
"""

from collections import Counter
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

import msgspec
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
    FrontendToWorker,
    Goodbye,
    Hello,
    Open,
    Output,
    Outputs,
    Owner,
    Released,
    Resume,
    Step,
    Tokens,
    WorkerStatus,
    WorkerToFrontend,
)
from postproc_workers.registry import Processor
from postproc_workers.testkit.model import (
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

RESUMES = (
    st.none()
    | st.builds(Resume, st.integers(0, 3), st.integers(1, 9), begun=st.just(True))
    | st.just(Resume(0, 0, begun=False))
)

Delivery = tuple[Owner, ModelMessage]


class RegistryUnderTest(Protocol):
    """What a registry must offer to be tested; `postproc_workers.registry.Registry` does."""

    def handle(self, owner: Owner, message: FrontendToWorker, now: int) -> WorkerToFrontend | None:
        """Act on a message; what comes back goes to `owner`."""
        ...

    def owner_lost(self, owner: Owner) -> None:
        """Release all that an owner holds: its connection is gone."""
        ...

    def release_idle(self) -> list[tuple[Owner, Released]]:
        """Release the streams that got no token since the last call."""
        ...

    def statistics(self) -> WorkerStatus:
        """The counters."""
        ...


RegistryFactory = Callable[[Callable[[Open], Processor]], RegistryUnderTest]
"""Makes an empty registry that makes its streams' post-processing by the function handed in."""


def machine_for(make_registry: RegistryFactory) -> type["RegistryMachine"]:
    """The state machine for a registry: run its `TestCase`, or `assert_contract`."""

    class Machine(RegistryMachine):
        def make_registry(self) -> RegistryUnderTest:
            return make_registry(self.make_processor)

    return Machine


class RegistryMachine(RuleBasedStateMachine):
    """Every message ever made stays in `messages`, and can come again at any later time."""

    messages = Bundle("messages")

    def __init__(self) -> None:
        super().__init__()
        self.alive: WeakSet[ScriptedProcessor] = WeakSet()
        self.registry = self.make_registry()
        self.model = RegistryModel(ScriptedProcessor)
        self.next_lease = 0

    def make_registry(self) -> RegistryUnderTest:
        """The registry to test, empty, which makes its processors by `make_processor`."""
        raise NotImplementedError("use machine_for")

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
        return self.open(owner, stream_id, model, data.draw(RESUMES))

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
    @rule(target=messages, data=st.data(), how=st.sampled_from(("abort", "moved", "fail")))
    def frontend_ends_it(self, data: st.DataObject, how: str) -> Delivery:
        stream = self.draw_live(data)
        stream_id, lease = stream.opening.stream_id, stream.opening.lease
        endings: dict[str, Abort | Fail] = {
            "abort": Abort(stream_id, lease),
            "moved": Abort(stream_id, lease, moved=True),
            "fail": Fail(stream_id, lease, "server_error", "the engine is gone"),
        }
        return self.deliver(stream.owner, endings[how])

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

    def open(
        self, owner: Owner, stream_id: int, model: str, resume: Resume | None = None
    ) -> Delivery:
        self.next_lease += 1
        return self.deliver(owner, opening(stream_id, self.next_lease, model, resume))

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
            after = self.registry.statistics()
            assert after.opened == before.opened
            assert after.live <= before.live

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
        status = self.registry.statistics()
        assert +Counter(status.released) == +self.model.released
        assert status.opened == self.model.opened

    @invariant()
    def l4_refusals_are_counted(self) -> None:
        status = self.registry.statistics()
        assert (status.stale, status.not_owned) == (self.model.stale, self.model.not_owned)

    @invariant()
    def l5_nothing_left(self) -> None:
        status = self.registry.statistics()
        assert status.live == len(self.model.live)
        assert status.live == status.opened - sum(status.released.values())
        assert len(self.alive) == status.live

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
            first = life.opening.resume.next_sequence if life.opening.resume else 0
            assert numbers == list(range(first, first + len(numbers)))

    @invariant()
    def l8_contained(self) -> None:
        """What failed has ended for its client, and all others live on or ended by themselves."""
        for life in self.model.lives:
            assert life.terminal_sent == (life.released in ("final", "error"))

    def teardown(self) -> None:
        for owner in OWNERS:
            self.registry.owner_lost(owner)
        assert self.registry.statistics().live == 0
        assert len(self.alive) == 0


def hello(owner: Owner) -> Hello:
    return Hello(PROTOCOL_VERSION, owner)


def opening(stream_id: int, lease: int, model: str, resume: Resume | None = None) -> Open:
    chat = ChatFormat()
    return Open(stream_id, lease, "chatcmpl-1", model, 0, 1, chat, streaming=True, resume=resume)


def draw_tokens(data: st.DataObject, stream: ModelStream, shift: int = 0) -> Tokens:
    about = stream.opening
    place = max(0, len(stream.tokens) + shift)
    ids = data.draw(st.lists(ORDINARY, max_size=4)) + [1] * max(0, -shift)
    return Tokens(about.stream_id, about.lease, place, ids, data.draw(FINISHES))
