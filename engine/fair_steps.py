"""How much of each tenant's work a step has, so that the tenant with the least of it hardly notices
the others: the step takes at most some times as long as it would with that tenant's alone.

On a CPU a step takes nearly twice as long with twice the sequences, so that another's flood would
otherwise slow every token; on a GPU it hardly takes longer, and nothing is held back.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from engine.step_costs import StepCosts

LATENCY_FACTOR = 2.0
"""By default, how many times as long."""
MANY = 1e9
LEAST_PROMPT_TOKENS = 16
"""Prompts go on by so many tokens in any step."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a tenant could have in a step: sequences that generate, and tokens of prompts. One that
    is `held_up` has only prompts that there is no room to start: nobody need hurry for it."""

    generating: int
    prompt_tokens: int
    weight: float = 1.0
    held_up: bool = False


@dataclass(frozen=True, slots=True)
class StepShare:
    """How many of each tenant's sequences generate, and how many tokens of prompts there are."""

    generating: Mapping[str, int]
    prompt_tokens: int


def fair_step(
    loads: Mapping[str, Load], costs: StepCosts, factor: float, budget: int
) -> StepShare | None:
    """What a step of up to `budget` tokens has, or None if it can have all that there is.

    Every tenant has a sequence that generates in it, if it has any, and as many as the one with
    the least work; the rest of the time goes to those with more, by weight, and to prompts.
    """
    own = {
        name: costs.seconds(load.generating, min(load.prompt_tokens, budget))
        for name, load in loads.items()
        if not load.held_up
    }
    if not own:
        return None
    lightest = min(own, key=lambda name: own[name])
    limit = factor * own[lightest]
    generating = sum(load.generating for load in loads.values())
    wanted = sum(load.prompt_tokens for load in loads.values())
    if costs.seconds(generating, min(wanted, budget - generating)) <= limit:
        return None
    least = max(1, loads[lightest].generating)
    granted = {name: min(load.generating, least) for name, load in loads.items()}
    total = sum(granted.values())
    most = min(wanted, budget - total)
    prompt = min(most, max(loads[lightest].prompt_tokens, LEAST_PROMPT_TOKENS))
    # Half of the time that is left is for the others' prompts.
    room = (limit - costs.seconds(total, prompt)) / 2
    prompt = max(prompt, min(most, prompt + _affordable(room, costs.prompt_token)))
    room = limit - costs.seconds(total, prompt)
    total += _fill(granted, loads, _affordable(room, costs.generating))
    room = limit - costs.seconds(total, prompt)
    prompt = min(wanted, budget - total, prompt + _affordable(room, costs.prompt_token))
    return StepShare(granted, prompt)


def _affordable(room: float, cost: float) -> int:
    """How many there is time for."""
    return int(min(max(room, 0) / max(cost, 1e-12), MANY))


def _fill(granted: dict[str, int], loads: Mapping[str, Load], more: int) -> int:
    """Let up to `more` further sequences generate, each time one of the tenant that has the fewest
    by its weight; returns how many."""
    waiting = [
        (granted[name] / load.weight, name)
        for name, load in loads.items()
        if granted[name] < load.generating
    ]
    heapq.heapify(waiting)
    added = 0
    while waiting and added < more:
        _, name = heapq.heappop(waiting)
        granted[name] += 1
        added += 1
        if granted[name] < loads[name].generating:
            heapq.heappush(waiting, (granted[name] / loads[name].weight, name))
    return added
