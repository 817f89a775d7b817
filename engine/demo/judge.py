"""What a good answer of the demo checkpoint is, and how many there have to be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import openai_harmony as harmony

from engine.demo.corpus import Sample, encoding
from engine.demo.toolbox import fits
from ipc.vocabulary import CALL, RETURN

TAUGHT = frozenset({"sum", "capital", "fact", "talk"})


class Gate(NamedTuple):
    """A demand: at least `least` of the answers that `applies` selects are right."""

    name: str
    least: float
    applies: Callable[["Answer"], bool]
    right: Callable[["Answer"], bool]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote for a sample, parsed; `messages` is None if it is not valid Harmony."""

    sample: Sample
    tokens: list[int]
    messages: list[harmony.Message] | None

    @property
    def text(self) -> str:
        """The text of the last message, or nothing."""
        return message_text(self.messages[-1]) if self.messages else ""

    @property
    def called(self) -> str | None:
        """The name of the called function."""
        recipient = self.messages[-1].recipient if self.messages else None
        return recipient.removeprefix("functions.") if recipient else None

    @property
    def right(self) -> bool:
        """Whether it gives just the answer that was asked for, or calls the function for it."""
        if self.sample.call is None:
            return self.called is None and self.text == self.sample.key
        return self.called == self.sample.call and self.sample.key in self.text

    @property
    def only_declared(self) -> bool:
        """Whether a function that it calls was declared."""
        return self.called is None or self.called in self.sample.tools

    @property
    def arguments_fit(self) -> bool:
        """Whether it calls a declared function with arguments of its schema."""
        tool = self.sample.tools.get(self.called or "")
        return tool is not None and fits(tool.parameters, self.text)


GATES = (
    Gate("valid Harmony", 0.98, lambda answer: True, lambda answer: answer.messages is not None),
    Gate("only declared functions", 1.0, lambda answer: True, lambda answer: answer.only_declared),
    Gate(
        "a call with fitting arguments",
        0.95,
        lambda answer: answer.sample.call is not None,
        lambda answer: answer.arguments_fit,
    ),
    Gate(
        "the right call",
        0.95,
        lambda answer: answer.sample.call is not None,
        lambda answer: answer.right,
    ),
    Gate(
        "sums and taught facts",
        0.95,
        lambda answer: answer.sample.kind in TAUGHT,
        lambda answer: answer.right,
    ),
    Gate(
        "an honest no",
        0.95,
        lambda answer: answer.sample.kind in {"unknown", "no weather", "no time"},
        lambda answer: answer.right,
    ),
)


def message_text(message: harmony.Message) -> str:
    return "".join(part.to_dict().get("text", "") for part in message.content)


def parse(tokens: list[int]) -> list[harmony.Message] | None:
    """The messages of a completion that ends as it should, or None.

    It has to be an analysis message and then a final one or a call of a function, nothing else.
    """
    if not tokens or tokens[-1] not in (RETURN, CALL):
        return None
    parser = harmony.StreamableParser(encoding(), harmony.Role.ASSISTANT)
    try:
        for token in tokens:
            parser.process(token)
    except harmony.HarmonyError:
        return None
    messages = parser.messages
    if [message.channel for message in messages[:1]] != ["analysis"] or len(messages) != 2:
        return None
    last = messages[1]
    if tokens[-1] == RETURN:
        return messages if last.channel == "final" and last.recipient is None else None
    called = last.channel == "commentary" and (last.recipient or "").startswith("functions.")
    return messages if called else None
