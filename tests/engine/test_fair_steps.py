"""What a step costs, how it is shared, and that a flood leaves the others their latency."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fair_steps import LEAST_PROMPT_TOKENS, Load, fair_step
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.step_costs import LEAST_STEPS, StepCosts
from tests.engine.builders import make_scheduler, make_sequence

FIXED, GENERATING, PROMPT = 1.5e-3, 0.5e-3, 0.07e-3
"""About the demo model's on one core (measured)."""


def cost(generating: int, prompt_tokens: int) -> float:
    return FIXED + GENERATING * generating + PROMPT * prompt_tokens


def learned(function: Callable[[int, int], float] = cost) -> StepCosts:
    costs, source = StepCosts(), random.Random(1)
    for _ in range(200):
        generating, prompt = source.randrange(1, 60), source.choice([0, 0, 30, 400])
        noise = source.uniform(0.95, 1.05)
        costs.observe(generating, prompt, noise * function(generating, prompt))
    return costs


def test_costs_are_learned() -> None:
    costs = learned()
    for generating, prompt in ((1, 0), (60, 0), (5, 400), (64, 512)):
        assert costs.seconds(generating, prompt) == pytest.approx(
            cost(generating, prompt), rel=0.25
        )


def test_nothing_is_known_at_first() -> None:
    costs = StepCosts()
    for _ in range(LEAST_STEPS):
        assert not costs.known
        costs.observe(1, 0, 1.0)
    assert costs.known


def test_costs_change() -> None:
    costs = learned()
    for step in range(1000):
        costs.observe(1 + step % 60, 0, 3 * cost(1 + step % 60, 0))
    assert costs.seconds(30, 0) == pytest.approx(3 * cost(30, 0), rel=0.1)


@pytest.mark.parametrize("step", [(30, 0), (1, 400), (60, 0)])
def test_a_step_in_which_the_machine_stood_still_hardly_counts(step: tuple[int, int]) -> None:
    loads = {"light": Load(1, 0), "flood": Load(60, 0)}
    costs = learned()
    costs.observe(*step, 14.0)
    for turn in range(100):
        costs.observe(turn % 60, turn % 3, cost(turn % 60, turn % 3))
    share = fair_step(loads, costs, 2.0, budget=512)
    assert share is not None
    assert 2 <= share.generating["flood"] <= 10


def test_costs_that_grow_a_hundredfold_are_learned_all_the_same() -> None:
    costs = learned()
    for step in range(1000):
        costs.observe(1 + step % 60, 0, 100 * cost(1 + step % 60, 0))
    assert costs.seconds(30, 0) == pytest.approx(100 * cost(30, 0), rel=0.1)


def test_steps_that_are_all_alike_say_little_and_raise_nothing() -> None:
    costs = StepCosts()
    for _ in range(5000):
        costs.observe(4, 0, 1.0)
    assert costs.seconds(4, 0) == pytest.approx(1.0, rel=0.01)


LOADS = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(Load, st.integers(0, 40), st.integers(0, 900), st.sampled_from([0.5, 1.0, 3.0])),
    min_size=1,
)


@given(loads=LOADS, fixed=st.floats(0, 1), each=st.floats(0, 1), token=st.floats(0, 0.1))
def test_shares(loads: dict[str, Load], fixed: float, each: float, token: float) -> None:
    """Everybody goes on, nobody has more than there is, and a step is no longer than it may be but
    for what everybody must have."""
    costs = StepCosts()
    costs._fixed, costs.generating, costs.prompt_token = fixed, each, token
    share = fair_step(loads, costs, 2.0, budget=512)
    if share is None:
        return
    for name, load in loads.items():
        assert min(1, load.generating) <= share.generating[name] <= load.generating
    total = sum(share.generating.values())
    wanted = sum(load.prompt_tokens for load in loads.values())
    assert share.prompt_tokens <= wanted
    assert total + share.prompt_tokens <= 512
    assert share.prompt_tokens >= min(LEAST_PROMPT_TOKENS, wanted, 512 - total)
    own = {
        name: costs.seconds(load.generating, min(512, load.prompt_tokens))
        for name, load in loads.items()
    }
    lightest = min(own, key=lambda name: own[name])
    least = max(1, loads[lightest].generating)
    must = sum(min(load.generating, least) for load in loads.values())
    longest = max(
        2 * own[lightest],
        costs.seconds(must, max(loads[lightest].prompt_tokens, LEAST_PROMPT_TOKENS)),
    )
    assert costs.seconds(total, share.prompt_tokens) <= longest * (1 + 1e-9)


def test_nothing_is_held_back_where_it_costs_nothing() -> None:
    costs = learned(lambda generating, prompt: 1e-2 + 1e-6 * (generating + prompt))
    assert fair_step({"a": Load(1, 0), "b": Load(200, 3000)}, costs, 2.0, budget=4096) is None


def test_tenants_that_are_alike_are_not_held_back() -> None:
    share = fair_step({str(n): Load(3, 0) for n in range(20)}, learned(), 2.0, budget=512)
    assert share is None or set(share.generating.values()) == {3}


class Clocked:
    """A scheduler on a machine whose steps cost what `cost` says."""

    def __init__(self, factor: float = 2.0) -> None:
        self.now = 0.0
        self.scheduler: Scheduler = make_scheduler(
            blocks=20_000, max_sequences=64, max_step_tokens=512, latency_factor=factor
        )
        self.times: dict[Sequence, list[float]] = {}

    def add(self, sequence: Sequence) -> Sequence:
        self.times[sequence] = [self.now]
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> None:
        plan = self.scheduler.schedule()
        generating = sum(item.generating for item in plan.scheduled)
        rest = sum(item.count for item in plan.scheduled if not item.generating)
        self.now += cost(generating, rest)
        self.scheduler.observe(plan.scheduled, cost(generating, rest))
        for item in plan.scheduled:
            samples = item.samples
            self.scheduler.advance(item)
            if samples:
                self.times[item.sequence].append(self.now)
                if item.sequence.append(0) is not None:
                    self.scheduler.remove(item.sequence)


def seconds_of_an_answer(flood: int, factor: float = 2.0) -> float:
    """Of 400 tokens, while another tenant keeps so many sequences running."""
    system = Clocked(factor)
    for _ in range(flood):
        system.add(make_sequence(200, 40, tenant="flood"))
    for _ in range(60 if flood else 0):
        system.step()
    own = system.add(make_sequence(60, 400, tenant="light"))
    while own.output_tokens < 400:
        system.step()
        missing = flood - system.scheduler.waiting - len(system.scheduler.running) + 1
        for _ in range(max(0, missing)):
            system.add(make_sequence(200, 40, tenant="flood"))
    return system.times[own][-1] - system.times[own][0]


def test_a_flood_leaves_another_tenant_within_twice_its_own_latency() -> None:
    alone = seconds_of_an_answer(flood=0)
    assert seconds_of_an_answer(flood=200) < 2.1 * alone
    assert seconds_of_an_answer(flood=200, factor=0.0) > 6 * alone


def test_those_held_back_take_turns() -> None:
    system = Clocked()
    for _ in range(40):
        system.add(make_sequence(4, 2000, tenant="flood"))
    system.add(make_sequence(4, 2000, tenant="light"))
    for _ in range(400):
        system.step()
    said = [len(times) for sequence, times in system.times.items() if sequence.tenant == "flood"]
    assert min(said) > 20
    assert max(said) - min(said) <= 3


def test_nobody_is_held_back_for_a_tenant_that_cannot_start() -> None:
    """Its prompt has no room beside the others, and after many steps without prompts these seem to
    cost nothing, so that it seems to have least."""
    system = Clocked()
    system.scheduler = make_scheduler(blocks=1000, max_sequences=16, max_step_tokens=64)
    for _ in range(10):
        system.add(make_sequence(4, 300, tenant="running"))
    for _ in range(20):
        system.step()
    system.add(make_sequence(3990, 5, tenant="waiting"))
    system.scheduler._costs = learned(lambda generating, _: cost(generating, 0))
    system.step()
    for _ in range(5):
        assert len(system.scheduler.schedule().scheduled) == 10
    assert system.scheduler.waiting == 1
