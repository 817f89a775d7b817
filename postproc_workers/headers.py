"""Reads a Harmony message's header, however badly a model wrote it.

A header is what stands between `<|start|>` and `<|message|>`: a role, then after `<|channel|>` a
channel, with a recipient (`to=NAME`) and a content type (after `<|constrain|>`) in any of them.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from ipc.vocabulary import CHANNEL, CONSTRAIN, START
from postproc_workers.tokens import TokenTable

FUNCTIONS = "functions."

_CHANNELS = ("analysis", "commentary", "final")
_ROLE_WORDS = ("assistant", *_CHANNELS)
_FOREIGN_ROLES = ("user", "system", "developer", "tool", FUNCTIONS)
_NOT_TOOLS = frozenset({"", FUNCTIONS, "assistant", "user", "system", "developer", "all"})
_RECIPIENT = re.compile(r'\bto=(\s*)([^\s{}\[\]"]*)')
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


class HeaderReader:
    """Reads the headers of one stream; `tools` are the names of the declared functions.

    A header's tokens begin with `<|start|>` if the model wrote one. Each irregularity is counted
    in `recovered`.
    """

    def __init__(self, table: TokenTable, tools: Collection[str], recovered: Counter[str]) -> None:
        self._table = table
        self._tools = tools
        self._recovered = recovered

    def read(self, tokens: Sequence[int]) -> Header:
        """The meaning of a header whose `<|message|>` has come."""
        parts = _split(tokens, CHANNEL)
        role = self._table.text(self._without_content_type(parts[0]))
        channel = self._table.text(self._without_content_type(parts[-1])) if len(parts) > 1 else ""
        if len(parts) > 2:
            self._recovered["channel_repeated"] += 1
        recipient = self._recipient(f"{role} {channel}")
        role = _RECIPIENT.sub("", role).strip()
        if recipient is None and _is_foreign(tokens, role):
            self._recovered["foreign_role"] += 1
            return Header(Kind.HIDDEN)
        if role not in ("", "assistant"):
            self._recovered["role"] += 1
        if recipient is not None:
            return Header(Kind.CALL, recipient)
        return _PLAIN[self._channel(channel, role)]

    def text_before(self, tokens: Sequence[int]) -> str:
        """What was said where a header's role stands: several words are no role."""
        role = _split(tokens, CHANNEL)[0]
        text = self._table.text(role)
        if CONSTRAIN in role or _RECIPIENT.search(text) or _is_foreign(tokens, text):
            return ""
        spoken = _without_role(text)
        words = spoken.split()
        return spoken if len(words) > 1 and not set(words) <= set(_ROLE_WORDS) else ""

    def text_within(self, tokens: Sequence[int], cut: bool) -> tuple[Header, str]:
        """What a header that never came to its `<|message|>` holds of a message.

        `cut` says that the output was cut off there, so that a word may be the beginning of a
        role, of a channel or of a content type; otherwise the model ended the message.
        """
        parts = _split(tokens, CHANNEL)
        last = self._table.text(self._without_content_type(parts[-1]))
        role = self._table.text(self._without_content_type(parts[0])) if len(parts) > 1 else ""
        whole = f"{role} {last}"
        recipient = self._recipient(whole)
        if recipient is not None:
            return Header(Kind.CALL, recipient), _arguments(whole)
        if _is_foreign(tokens, role or last):
            self._recovered["foreign_role"] += 1
            return Header(Kind.HIDDEN), ""
        text = _RECIPIENT.sub("", last)
        if len(parts) == 1:
            return _PLAIN["final"], _without_role_words(_without_role(text), cut)
        name = next(filter(text.lstrip().startswith, _CHANNELS), "")
        text = text.lstrip().removeprefix(name).lstrip()
        return _PLAIN[name or "final"], "" if cut and len(text.split()) < 2 else text

    def _without_content_type(self, tokens: list[int]) -> list[int]:
        """Drop `<|constrain|>` and the word after it, of however many tokens; what follows that
        word is kept."""
        if CONSTRAIN not in tokens:
            return tokens
        place = tokens.index(CONSTRAIN)
        end = place + 2
        while self._table.text(tokens[end : end + 1]).isalpha():
            end += 1
        return tokens[:place] + tokens[end:]

    def _recipient(self, header: str) -> str | None:
        match = _RECIPIENT.search(header)
        if match is None:
            return None
        gap, recipient = match.groups()
        if recipient in self._tools:
            if "." not in recipient:
                self._recovered["recipient"] += 1
            return recipient
        if recipient in _NOT_TOOLS or (gap and not recipient.startswith(FUNCTIONS)):
            self._recovered["recipient"] += 1
            return None
        name = recipient.removeprefix(FUNCTIONS)
        return name if name in self._tools else self._in_a_namespace(name)

    def _in_a_namespace(self, name: str) -> str:
        """The one declared tool that has this name in a namespace of its own, else `name`."""
        found = [tool for tool in self._tools if tool.endswith(f".{name}")]
        if len(found) != 1:
            return name
        self._recovered["recipient"] += 1
        return found[0]

    def _channel(self, channel: str, role: str) -> str:
        text = _RECIPIENT.sub("", channel).strip()
        if text in _PLAIN:
            return text
        for name in _CHANNELS:
            if text.startswith(name):
                self._recovered["channel_text"] += 1
                return name
        for name in _CHANNELS:
            if role.endswith(name):
                return name
        self._recovered["channel_unknown" if text else "channel_missing"] += 1
        return "final"


def _is_foreign(tokens: Sequence[int], role: str) -> bool:
    """Whether a role says that somebody else speaks: only where the model began a message, as
    the prompt has begun the first one for the assistant."""
    return tokens[:1] == [START] and role.lstrip().startswith(_FOREIGN_ROLES)


def _arguments(header: str) -> str:
    """The JSON object behind a recipient; a channel or content type may stand between."""
    match = _RECIPIENT.search(header)
    place = header.find("{", match.end() if match else 0)
    return header[place:] if place >= 0 else ""


def _without_role(text: str) -> str:
    match = _WRITTEN_ROLE.match(text)
    return text[match.end() :] if match else text


def _without_role_words(text: str, cut: bool) -> str:
    """`text`, unless it is a role's or a channel's name, or can be the beginning of one."""
    words = (*_ROLE_WORDS, "to=")
    names = any(word.startswith(text) for word in words) if cut else text.strip() in words
    return "" if names else text


def _split(tokens: Sequence[int], separator: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
