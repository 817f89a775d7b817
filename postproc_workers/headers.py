"""Reads a Harmony message's header, however badly a model wrote it.

A header is what stands between `<|start|>` and `<|message|>`: a role, then after `<|channel|>` a
channel, with a recipient (`to=NAME`) and a content type (after `<|constrain|>`) in any of them.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from postproc_workers.tokens import CHANNEL, CONSTRAIN, TokenTable

FUNCTIONS = "functions."

_CHANNELS = ("analysis", "commentary", "final")
_FOREIGN_ROLES = ("user", "system", "developer", "tool", FUNCTIONS)
_NOT_TOOLS = frozenset({"assistant", "user", "system", "developer", "all"})
_RECIPIENT = re.compile(r"\bto=\s*(\S*)")
_WRITTEN_ROLE = re.compile(r"\s*(assistant\s*)*")


class Kind(Enum):
    """What a message is to the client."""

    REASONING = "reasoning"
    PREAMBLE = "preamble"
    ANSWER = "answer"
    CALL = "call"
    HIDDEN = "hidden"
    """Written in the name of somebody else: a made-up user turn or tool result."""


@dataclass(frozen=True, slots=True)
class Header:
    """`name` is the function that a call is to, otherwise empty."""

    kind: Kind
    name: str = ""


_PLAIN = {
    "analysis": Header(Kind.REASONING),
    "commentary": Header(Kind.PREAMBLE),
    "final": Header(Kind.ANSWER),
}


def read_header(
    tokens: Sequence[int], table: TokenTable, tools: Collection[str], recovered: Counter[str]
) -> Header:
    """The meaning of the header `tokens`; each irregularity is counted in `recovered`.

    `tools` are the names of the declared functions.
    """
    parts = _split(tokens, CHANNEL)
    role = table.text(_without_content_type(parts[0]))
    channel = table.text(_without_content_type(parts[-1])) if len(parts) > 1 else ""
    if len(parts) > 2:
        recovered["channel_repeated"] += 1
    recipient = _recipient(f"{role} {channel}", tools, recovered)
    role = _RECIPIENT.sub("", role).strip()
    if recipient is None and role.startswith(_FOREIGN_ROLES):
        recovered["foreign_role"] += 1
        return Header(Kind.HIDDEN)
    if role not in ("", "assistant"):
        recovered["role"] += 1
    if recipient is not None:
        return Header(Kind.CALL, recipient)
    return _PLAIN[_channel(channel, role, recovered)]


def text_in_header(tokens: Sequence[int], table: TokenTable, cut: bool) -> tuple[Header, str]:
    """What a header that never came to its `<|message|>` holds of an answer: its kind and text.

    `cut` says that the output was cut off there, so that a word may be the beginning of a role or
    of a channel; otherwise the model ended the message.
    """
    parts = _split(tokens, CHANNEL)
    text = table.text(parts[-1])
    if len(parts) > 1:
        for name in _CHANNELS:
            if text.startswith(name):
                return (_PLAIN[name], "" if cut else text.removeprefix(name).lstrip())
        return (_PLAIN["final"], "" if cut else text)
    rest = text[_written_role_length(text) :]
    words = ("assistant", *_CHANNELS)
    unfinished = rest.startswith("to=") or any(word.startswith(rest) for word in words)
    return (_PLAIN["final"], "" if unfinished else rest)


def _written_role_length(text: str) -> int:
    match = _WRITTEN_ROLE.match(text)
    return match.end() if match and "assistant" in match.group() else len(text) - len(text.lstrip())


def _split(tokens: Sequence[int], separator: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _without_content_type(tokens: list[int]) -> list[int]:
    """Drop `<|constrain|>` and the word after it; what follows that word is kept."""
    if CONSTRAIN not in tokens:
        return tokens
    place = tokens.index(CONSTRAIN)
    return tokens[:place] + tokens[place + 2 :]


def _recipient(header: str, tools: Collection[str], recovered: Counter[str]) -> str | None:
    match = _RECIPIENT.search(header)
    if match is None:
        return None
    recipient = match.group(1)
    if recipient in tools:
        recovered["recipient"] += 1
        return recipient
    name = recipient.removeprefix(FUNCTIONS)
    if not name or name in _NOT_TOOLS:
        recovered["recipient"] += 1
        return None
    return name


def _channel(channel: str, role: str, recovered: Counter[str]) -> str:
    text = _RECIPIENT.sub("", channel).strip()
    if text in _PLAIN:
        return text
    for name in _CHANNELS:
        if text.startswith(name):
            recovered["channel_text"] += 1
            return name
    for name in _CHANNELS:
        if role.endswith(name):
            return name
    recovered["channel_unknown" if text else "channel_missing"] += 1
    return "final"
