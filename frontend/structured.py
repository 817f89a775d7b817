"""What a request says that its answer must be like, as a constraint for the engine.

A JSON format binds the final message, `strict` a function's arguments, and a `tool_choice` that
forces a call the end of the turn and that call's arguments. Everything is checked here, so that
what cannot be compiled is the client's error before anything is generated.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from frontend.conversation import OutputFormat
from frontend.errors import InvalidRequestError
from frontend.requests.fields import FunctionDefinition, JsonObject, NamedFunction
from ipc.grammars import GrammarError, check_constraint
from ipc.messages import Constraint, Grammar

_logger = logging.getLogger(__name__)

ANY_OBJECT = Grammar("json_schema", '{"type":"object"}')
CHECKED = 1024


@dataclass(frozen=True, slots=True)
class OfferedFunction:
    """A function that may be called, `param` being the place of its schema in the request."""

    definition: FunctionDefinition
    param: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an answer must be like, unchecked. `choice` is the request's tool_choice."""

    format: OutputFormat | None
    functions: tuple[OfferedFunction, ...]
    choice: str | NamedFunction | None


async def constraint_of(wanted: Wanted) -> Constraint | None:
    """The constraint; None if the answer is free.

    Raises InvalidRequestError for a schema that cannot be compiled, and for a choice of what is
    not offered. The schema of a function that is not strict, though forced, is followed if it can
    be; else any JSON object will do.
    """
    final = None
    if wanted.format is not None:
        final = _grammar(wanted.format.schema)
        await _check(final, wanted.format.param)
    forced = _forced(wanted)
    calls: dict[str, Grammar | None] = {}
    for function in wanted.functions if forced is None else forced:
        calls[function.definition.name] = await _arguments(function, forced is not None)
    if final is None and not any(calls.values()):
        return None
    return Constraint(final, calls, must_call=forced is not None)


async def _arguments(function: OfferedFunction, forced: bool) -> Grammar | None:
    """The grammar of a function's arguments; None if they are free."""
    strict = function.definition.strict
    if not strict and not forced:
        return None
    grammar = _grammar(function.definition.parameters)
    try:
        await _check(grammar, function.param)
    except InvalidRequestError as error:
        if strict:
            raise
        _logger.warning("any object is taken for %s: %s", function.definition.name, error)
        return ANY_OBJECT
    return grammar


def _forced(wanted: Wanted) -> Sequence[OfferedFunction] | None:
    """The functions of which one has to be called; None if none has to."""
    choice = wanted.choice
    if isinstance(choice, NamedFunction):
        found = [f for f in wanted.functions if f.definition.name == choice.name]
        if not found:
            raise InvalidRequestError(
                f"Invalid 'tool_choice': there is no function {choice.name!r} in 'tools'.",
                param="tool_choice",
            )
        return found
    if choice != "required":
        return None
    if not wanted.functions:
        raise InvalidRequestError(
            "Invalid 'tool_choice': 'required' needs a function in 'tools'.", param="tool_choice"
        )
    return wanted.functions


def _grammar(schema: JsonObject | None) -> Grammar:
    if schema is None:
        return ANY_OBJECT
    return Grammar("json_schema", msgspec.json.encode(schema).decode())


async def _check(grammar: Grammar, param: str) -> None:
    # A size bounds no times: 2 KB of alternatives can take 50 ms (measured).
    complaint = await asyncio.to_thread(_complaint, grammar)
    if complaint is not None:
        raise InvalidRequestError(
            f"Invalid '{param}': the schema cannot be followed: {complaint}.",
            param=param,
            code="invalid_json_schema",
        )


@lru_cache(maxsize=CHECKED)
def _complaint(grammar: Grammar) -> str | None:
    """What is wrong with a grammar. Clients send the same ones with every request."""
    try:
        check_constraint(Constraint(final=grammar))
    except GrammarError as error:
        return str(error).rstrip(".")
    return None
