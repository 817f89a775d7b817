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
from ipc.grammar_check import checker
from ipc.messages import Constraint, Grammar

_logger = logging.getLogger(__name__)

ANY_OBJECT = Grammar("json_schema", '{"type":"object"}')
CHECKED = 256
"""So many grammars are known; each has up to 256 KiB."""


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
    forced = _forced(wanted)
    offered = wanted.functions if forced is None else forced
    bound = [f for f in offered if forced is not None or f.definition.strict]
    if wanted.format is None and not bound:
        return None
    # A size bounds no times: 2 KB of alternatives can take 50 ms (measured).
    final, grammars = await asyncio.to_thread(_checked, wanted.format, bound)
    calls = {f.definition.name: grammars.get(f.definition.name) for f in offered}
    return Constraint(final, calls, must_call=forced is not None)


def _checked(
    asked: OutputFormat | None, functions: Sequence[OfferedFunction]
) -> tuple[Grammar | None, dict[str, Grammar]]:
    """The grammars of a format and of functions by their names. Raises InvalidRequestError."""
    final = None
    if asked is not None:
        final = _grammar(asked.schema)
        _check(final, asked.param)
    return final, {f.definition.name: _arguments(f) for f in functions}


def _arguments(function: OfferedFunction) -> Grammar:
    definition = function.definition
    grammar = _grammar(definition.parameters)
    try:
        _check(grammar, function.param)
    except InvalidRequestError as error:
        if definition.strict:
            raise
        _logger.warning("any object is taken for %s: %s", definition.name, error)
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


def _check(grammar: Grammar, param: str) -> None:
    complaint = _complaint(grammar)
    if complaint is not None:
        raise InvalidRequestError(
            f"Invalid '{param}': the schema cannot be followed: {complaint}.",
            param=param,
            code="invalid_json_schema",
        )


@lru_cache(maxsize=CHECKED)
def _complaint(grammar: Grammar) -> str | None:
    """What is wrong with a grammar. Clients send the same ones with every request."""
    complaint = checker().complaint(grammar)
    return None if complaint is None else complaint.rstrip(".")
