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

from frontend.conversation import Choice, OutputFormat, Tool
from frontend.errors import InvalidRequestError
from frontend.requests.fields import JsonObject
from ipc.grammar_check import checker
from ipc.messages import Constraint, Grammar

_logger = logging.getLogger(__name__)

ANY_OBJECT = Grammar("json_schema", '{"type":"object"}')
CHECKED = 256
"""So many grammars are known; each has up to 256 KiB."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an answer must be like, unchecked: its format, and which of the tools may be called."""

    format: OutputFormat | None
    tools: tuple[Tool, ...]
    choice: Choice


async def constraint_of(wanted: Wanted) -> Constraint | None:
    """The constraint; None if the answer is free.

    Raises InvalidRequestError for a schema or a grammar that cannot be compiled. The schema of a
    function that is not strict, though forced, is followed if it can be; else any JSON object will
    do.
    """
    names, must = wanted.choice.names, wanted.choice.must
    tools = [tool for tool in wanted.tools if names is None or tool.name in names]
    bound = [tool for tool in tools if _is_bound(tool, must)]
    free = not bound and not must and names is None
    if wanted.format is None and free:
        return None
    # A size bounds no times: 2 KB of alternatives can take 50 ms (measured).
    final, grammars = await asyncio.to_thread(_checked, wanted.format, bound)
    calls = {tool.name: grammars.get(tool.name) for tool in tools}
    custom = tuple(tool.name for tool in tools if tool.custom)
    return Constraint(final, calls, must_call=must, custom=custom)


def _is_bound(tool: Tool, must: bool) -> bool:
    """Whether what a call of the tool holds has to follow something."""
    return tool.grammar is not None if tool.custom else tool.strict or must


def _checked(
    asked: OutputFormat | None, tools: Sequence[Tool]
) -> tuple[Grammar | None, dict[str, Grammar]]:
    """The grammars of a format and of tools by their names. Raises InvalidRequestError."""
    final = None
    if asked is not None:
        final = _grammar(asked.schema)
        _check(final, asked.param)
    return final, {tool.name: _contents(tool) for tool in tools}


def _contents(tool: Tool) -> Grammar:
    """What a call of the tool holds."""
    grammar = tool.grammar or _grammar(tool.parameters)
    try:
        _check(grammar, tool.param)
    except InvalidRequestError as error:
        if tool.custom or tool.strict:
            raise
        _logger.warning("any object is taken for %s: %s", tool.name, error)
        return ANY_OBJECT
    return grammar


def _grammar(schema: JsonObject | None) -> Grammar:
    if schema is None:
        return ANY_OBJECT
    return Grammar("json_schema", msgspec.json.encode(schema).decode())


def _check(grammar: Grammar, param: str) -> None:
    complaint = _complaint(grammar)
    if complaint is not None:
        schema = grammar.kind == "json_schema"
        what, code = ("schema", "invalid_json_schema") if schema else ("grammar", "invalid_grammar")
        raise InvalidRequestError(
            f"Invalid '{param}': the {what} cannot be followed: {complaint}.",
            param=param,
            code=code,
        )


@lru_cache(maxsize=CHECKED)
def _complaint(grammar: Grammar) -> str | None:
    """What is wrong with a grammar. Clients send the same ones with every request."""
    complaint = checker().complaint(grammar)
    return None if complaint is None else complaint.rstrip(".")
