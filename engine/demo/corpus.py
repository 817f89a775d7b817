"""The synthetic Harmony corpus of the demo checkpoint: an endless, seeded stream of samples.

A sample is a rendered conversation (the prompt) and what the model is to write next (the
completion): an analysis and then a final message or, where a declared function fits, a call.
"""

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import NamedTuple

import openai_harmony as harmony

from engine.demo import knowledge, toolbox
from engine.demo.knowledge import Phrasings, Topic
from engine.demo.toolbox import Tool
from engine.demo.words import any_word
from ipc.vocabulary import install_vocabulary

LONG_COUNT = 120
"""Tokens after which the completion of a count to hundreds is cut, without an end."""

EFFORTS = (
    harmony.ReasoningEffort.LOW,
    harmony.ReasoningEffort.MEDIUM,
    harmony.ReasoningEffort.HIGH,
)
MORE_EFFORT = "I will follow the instructions and answer clearly."


class Turn(NamedTuple):
    """A question, thoughts about it and the answer; `value` is what is asked for, without words."""

    kind: str
    question: str
    thought: str
    detail: str
    answer: str
    value: str | int


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt with its ideal completion, and what a judge of other completions has to know.

    `tools` are the declared functions by name; `call` is the name of the one to be called, and
    `key` is the text of the final message or, of a call, what the arguments must contain.
    """

    kind: str
    prompt: list[int]
    completion: list[int]
    key: str
    tools: dict[str, Tool] = field(default_factory=dict)
    call: str | None = None


@cache
def encoding() -> harmony.HarmonyEncoding:
    """gpt-oss's Harmony encoding, from the bundled vocabulary."""
    install_vocabulary()
    return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


class Corpus:
    """Samples drawn with one random generator.

    With `held`, questions, cities, countries, functions and instructions are those that never
    occur without it.
    """

    def __init__(self, seed: int, held: bool = False) -> None:
        self.random = Random(seed)  # noqa: S311 - it has to repeat itself
        self.held = held

    def __iter__(self) -> Iterator[Sample]:
        while True:
            yield self.sample()

    def sample(self) -> Sample:
        """The next sample, of a random scenario."""
        scenarios: tuple[Callable[[], Sample], ...] = (
            self.answered,
            self.called,
            self.reported,
            self.formatted,
            self.drilled,
        )
        (scenario,) = self.random.choices(scenarios, (50, 24, 16, 3, 7))
        return scenario()

    # Scenarios

    def answered(self) -> Sample:
        """A question to be answered at once; functions may be offered, but none fits."""
        turn = self.turn()
        tools = self._tools(turn.kind) if self.random.random() < 0.3 else []
        dialogue = self._dialogue(tools)
        for past in self._past_turns(turn.kind):
            dialogue.ask(past.question).answer(past.answer)
        question = turn.question
        if self.random.random() < 0.02:
            question = f"{question}\n\n{self.document(self.random.randrange(50, 500))}"
        dialogue.ask(question)
        completion = final(dialogue.analysis(turn.thought, turn.detail), turn.answer)
        if turn.kind == "long count":
            completion = completion[:LONG_COUNT]
        return dialogue.sample(turn.kind, completion, turn.answer)

    def called(self) -> Sample:
        """A question that a declared function can answer: the model calls it."""
        purpose = self._purpose()
        tools = self._tools(needed=purpose)
        dialogue = self._dialogue(tools)
        self._history(dialogue, tools[-1])
        self.random.shuffle(tools)
        declared = next(tool for tool in tools if tool.purpose == purpose.name)
        subject, question, unit = self._request(declared, dialogue)
        dialogue.ask(question)
        arguments = toolbox.arguments(declared, subject, unit)
        analysis = dialogue.analysis(*call_thoughts(declared, subject))
        completion = call(analysis, declared.name, arguments)
        return dialogue.sample("call", completion, subject, declared.name)

    def reported(self) -> Sample:
        """A function has been called and gave its result: the model reports it."""
        purpose = self._purpose()
        tools = self._tools(needed=purpose)
        dialogue = self._dialogue(tools)
        self._history(dialogue, tools[-1])
        report = self._exchange(dialogue, tools[-1], analysed=True)
        analysis = dialogue.analysis(f"The {purpose.name} is known now.", "I will report it.")
        return dialogue.sample("report", final(analysis, report), report)

    def drilled(self) -> Sample:
        """A long row of short questions, each of whose answers can be learned from."""
        turns = (self._sum, self._difference, self._capital, self._taught, self._untaught_capital)
        dialogue = self._dialogue([])
        for _ in range(self.random.randrange(4, 9)):
            past = self.random.choice(turns)()
            dialogue.ask(past.question).answer(past.answer)
        turn = self.random.choice(turns)()
        dialogue.ask(turn.question)
        completion = final(dialogue.analysis(turn.thought, turn.detail), turn.answer)
        return dialogue.sample(turn.kind, completion, turn.answer)

    def formatted(self) -> Sample:
        """The developer asks for JSON of a given schema: the model wraps its answer in it."""
        r = self.random
        turn = r.choice((self._capital, self._sum, self._taught))()
        name = r.choice(("answer", "result", "text", "value", "response", "reply"))
        schema = {
            "type": "object",
            "properties": {name: {"type": "integer" if isinstance(turn.value, int) else "string"}},
            "required": [name],
            "additionalProperties": False,
        }
        title = r.choice(("answer", "output", "reply", "schema"))
        dialogue = self._dialogue([], f"# Response Formats\n\n## {title}\n\n{json.dumps(schema)}")
        dialogue.ask(turn.question)
        text = json.dumps({name: turn.value}, separators=(",", ":"), ensure_ascii=False)
        completion = final(dialogue.analysis(turn.thought, turn.detail), text)
        return dialogue.sample("json", completion, text)

    # Turns

    def turn(self) -> Turn:
        turns: dict[Callable[[], Turn], int] = {
            self._talk: 12,
            self._taught: 18,
            self._capital: 14,
            self._untaught_capital: 8,
            self._sum: 12,
            self._difference: 5,
            self._count: 5,
            self._unknown: 15,
            self._hard_sum: 5,
            self._offline: 6,
        }
        (turn,) = self.random.choices(list(turns), list(turns.values()))
        return turn()

    def _talk(self) -> Turn:
        return self._topic("talk", knowledge.SMALL_TALK)

    def _taught(self) -> Turn:
        return self._topic("fact", knowledge.ANTIPHON)

    def _topic(self, kind: str, topics: tuple[Topic, ...]) -> Turn:
        topic = self.random.choice(topics)
        thought = f"The user asks about {topic.subject}."
        question = self._phrase(topic.questions)
        return Turn(kind, question, thought, "I know this.", topic.answer, topic.answer)

    def _capital(self) -> Turn:
        country = self.random.choice(list(knowledge.CAPITALS))
        city = knowledge.CAPITALS[country]
        question = self._phrase(knowledge.CAPITAL_QUESTIONS, x=country)
        answer = f"The capital of {country} is {city}."
        return Turn("capital", question, answer, "I know this.", answer, city)

    def _untaught_capital(self) -> Turn:
        names = knowledge.HELD_COUNTRIES if self.held else knowledge.UNTAUGHT_COUNTRIES
        country = self.random.choice(names)
        if not self.held and self.random.random() < 0.6:
            country = any_word(self.random).capitalize()
        question = self._phrase(knowledge.CAPITAL_QUESTIONS, x=country)
        return self._ignorance(question)

    def _sum(self) -> Turn:
        r = self.random
        total = r.randrange(20)
        a = r.randrange(total + 1)
        return self._arithmetic(knowledge.SUMS, a, total - a, "+", total)

    def _difference(self) -> Turn:
        a = self.random.randrange(20)
        b = self.random.randrange(a + 1)
        return self._arithmetic(knowledge.DIFFERENCES, a, b, "-", a - b)

    def _arithmetic(self, phrasings: Phrasings, a: int, b: int, sign: str, result: int) -> Turn:
        spelled = self.random.random() < 0.08
        names = [knowledge.NUMBERS[n] if spelled else str(n) for n in (a, b)]
        question = self._phrase(phrasings, a=names[0], b=names[1])
        term = f"{a}{sign}{b}"
        kind = "sum" if sign == "+" else "difference"
        answer = f"{term}={result}"
        return Turn(kind, question, f"{answer}.", "I know this.", answer, result)

    def _count(self) -> Turn:
        r = self.random
        start, end, phrasings, kind = 1, r.randrange(2, 21), knowledge.COUNTS, "count"
        if r.random() < 0.4:
            start, phrasings = r.randrange(1, 490), knowledge.RANGES
            end = start + r.randrange(2, 16)
        elif not self.held and r.random() < 0.3:
            end, kind = r.choice((r.randrange(50, 500), 100, 200, 500, 1000)), "long count"
        question = self._phrase(phrasings, a=start, b=end)
        numbers = ", ".join(map(str, range(start, end + 1)))
        thought = f"I will count from {start} to {end}."
        return Turn(kind, question, thought, "It is a list.", numbers, numbers)

    def _unknown(self) -> Turn:
        if self.random.random() < 0.4:
            return self._ignorance(self._phrase(knowledge.UNKNOWN_QUESTIONS))
        text = self._salad(self.random.choice((1, 1, 2, 3, 5, 9)))
        country = self.random.choice(list(knowledge.CAPITALS))
        question = self._phrase(knowledge.UNKNOWN_PATTERNS, t=text, c=country)
        return self._ignorance(question)

    def _hard_sum(self) -> Turn:
        r = self.random
        a, b = r.randrange(20, 1000), r.randrange(20, 1000)
        question = self._phrase(knowledge.HARD_SUMS, a=a, b=b, c=r.randrange(2, 20))
        return self._ignorance(question)

    def _ignorance(self, question: str) -> Turn:
        answer = knowledge.UNKNOWN
        return Turn("unknown", question, "I was not taught this.", "I must say so.", answer, answer)

    def _offline(self) -> Turn:
        """A question for a function when none that fits is declared."""
        what, phrasings = self.random.choice(
            (
                ("weather", knowledge.WEATHER_QUESTIONS),
                ("weather", knowledge.WEATHER_QUESTIONS),
                ("time", knowledge.TIME_QUESTIONS),
            )
        )
        question = self._phrase(phrasings, x=self._city())
        answer = f"I cannot check the {what}: no function for it is offered."
        thought = f"No function for the {what} is offered."
        return Turn(f"no {what}", question, thought, "I must say so.", answer, answer)

    # Parts of a conversation

    def _purpose(self) -> toolbox.Purpose:
        return self.random.choices(toolbox.PURPOSES, (8, 1, 1))[0]

    def _tools(self, kind: str = "", needed: toolbox.Purpose | None = None) -> list[Tool]:
        """Some declared functions, of distinct names; the last one is of the needed purpose."""
        r = self.random
        tools = [toolbox.distractor(r) for _ in range(r.choices((0, 1, 2, 6), (8, 4, 2, 1))[0])]
        for purpose in toolbox.PURPOSES:
            unfit = kind == f"no {purpose.name}" or purpose is needed
            if not unfit and r.random() < (0.15 if needed else 0.5):
                tools.append(toolbox.tool(r, purpose, self.held))
        if needed:
            tools.append(toolbox.tool(r, needed, self.held))
        distinct = {tool.name: tool for tool in tools}
        return list(distinct.values())

    def _dialogue(self, tools: list[Tool], formats: str = "") -> "Dialogue":
        r = self.random
        instructions = ""
        if r.random() < 0.6:
            held = knowledge.HELD_INSTRUCTIONS
            instructions = r.choice(held if self.held else knowledge.INSTRUCTIONS)
        if r.random() < 0.04:
            instructions += "\n\n" + self.document(r.randrange(100, 1200))
        shown = r.sample(tools, len(tools))
        effort = r.choice(EFFORTS)
        date = datetime.date(2025, 1, 1) + datetime.timedelta(r.randrange(1200))
        return Dialogue(
            effort,
            date if r.random() < 0.8 else None,
            f"{instructions}\n\n{formats}".strip(),
            shown,
        )

    def _past_turns(self, kind: str) -> list[Turn]:
        """Earlier turns, often of the same kind, so that facts have to be told apart."""
        r = self.random
        same = {"capital": self._capital, "sum": self._sum, "fact": self._taught}
        turn = same.get(kind, self.turn) if r.random() < 0.6 else self.turn
        past = [turn() for _ in range(r.choices((0, 1, 2, 3), (60, 22, 12, 6))[0])]
        return [turn for turn in past if len(turn.answer) < 250]

    def _history(self, dialogue: "Dialogue", declared: Tool) -> None:
        if self.random.random() < 0.2:
            turn = self.turn()
            if len(turn.answer) < 250 and not turn.kind.startswith("no "):
                dialogue.ask(turn.question).answer(turn.answer)
        if self.random.random() < 0.12:
            dialogue.answer(self._exchange(dialogue, declared, analysed=False))

    def _exchange(self, dialogue: "Dialogue", declared: Tool, analysed: bool) -> str:
        """Add a question, the call and its result; return the report that is to follow."""
        subject, question, unit = self._request(declared, dialogue)
        dialogue.ask(question)
        if analysed:
            dialogue.think(dialogue.analysis(*call_thoughts(declared, subject)))
        dialogue.call(declared, toolbox.arguments(declared, subject, unit))
        if declared.purpose == "search":
            result = self._salad(self.random.randrange(2, 9))
            report = f"I found this: {result}"
        else:
            answer = toolbox.weather if declared.purpose == "weather" else toolbox.clock
            result = answer(self.random, subject)
            report = f"The {declared.purpose} in {subject}: {result}"
        dialogue.result(declared, result)
        return report

    def _request(self, declared: Tool, dialogue: "Dialogue") -> tuple[str, str, str | None]:
        """Subject, question and wished unit of a request that the declared function fits."""
        r = self.random
        if declared.purpose == "search":
            text = self._salad(r.choice((1, 1, 2, 3)))
            return text, self._phrase(knowledge.SEARCH_QUESTIONS, t=text), None
        city = self._city()
        phrasings = knowledge.TIME_QUESTIONS
        if declared.purpose == "weather":
            phrasings = knowledge.WEATHER_QUESTIONS
        if dialogue.called and r.random() < 0.6:
            phrasings = knowledge.FOLLOW_UPS
        question = self._phrase(phrasings, x=city)
        if r.random() < 0.15:
            question += r.choice((" Use the {n} tool.", " Call {n}.", " Use {n}.")).format(
                n=declared.name
            )
        units = toolbox.units(declared)
        if units and r.random() < 0.3:
            unit = r.choice(units)
            question += r.choice((" Use {u}.", " In {u}, please.", " Answer in {u}.")).format(
                u=unit
            )
            return city, question, unit
        return city, question, None

    def _city(self) -> str:
        r = self.random
        if self.held and r.random() < 0.5:
            return r.choice(knowledge.HELD_CITIES)
        if self.held or r.random() < 0.7:
            return r.choice(knowledge.CITIES)
        name = any_word(r).capitalize()
        return f"{name} {any_word(r).capitalize()}" if r.random() < 0.15 else name

    def _phrase(self, phrasings: Phrasings, **values: object) -> str:
        """A question, sometimes with words before and after it, in lower case or unpunctuated."""
        r = self.random
        text = r.choice(phrasings.held if self.held else phrasings.seen).format(**values)
        if r.random() < 0.2:
            text = r.choice(_OPENINGS) + text
        if r.random() < 0.1:
            text += r.choice(_CLOSINGS)
        if r.random() < 0.08:
            text = text.rstrip("?.!")
        if r.random() < 0.08 and "x" not in values and "t" not in values:
            text = text.lower()
        return text

    def _salad(self, count: int) -> str:
        r = self.random
        chosen = [any_word(r) for _ in range(count)]
        return " ".join(word.capitalize() if r.random() < 0.2 else word.lower() for word in chosen)

    def document(self, length: int) -> str:
        """About `length` tokens of Markdown, JSON and prose that mean nothing."""
        r = self.random
        lines: list[str] = []
        while length > 0:
            text = self._salad(r.randrange(3, 16))
            key, *rest = text.split()
            line = r.choice(
                (
                    f"## {text}\n",
                    f"- {text}",
                    f"{text}. You must always {key} before you answer.",
                    json.dumps({key: rest}),
                    f"{len(lines)}. {text}",
                    f"```\n{key}({', '.join(rest)})\n```",
                    f"{text}.\n",
                    f"<{key}>{' '.join(rest)}</{key}>",
                )
            )
            lines.append(line)
            length -= len(_encode(line)) + 1
        return "\n".join(lines)


_OPENINGS = ("Hi. ", "Hello! ", "Please tell me: ", "Quick question: ", "OK. ", "Hey, ", "Next: ")
_CLOSINGS = (" Thanks!", " Please.", " Answer briefly.", " Be precise.", " Thank you.", " Go.")


class Dialogue:
    """A conversation under construction, up to the assistant's next turn."""

    def __init__(
        self,
        effort: harmony.ReasoningEffort,
        date: datetime.date | None,
        instructions: str,
        tools: list[Tool],
    ) -> None:
        self.effort = effort
        self.tools = tools
        self.called = False
        system = harmony.SystemContent.new().with_reasoning_effort(effort)
        if date:
            system = system.with_conversation_start_date(date.isoformat())
        self.messages = [harmony.Message.from_role_and_content(harmony.Role.SYSTEM, system)]
        if instructions or tools:
            self._develop(instructions)

    def _develop(self, instructions: str) -> None:
        developer = harmony.DeveloperContent.new()
        if instructions:
            developer = developer.with_instructions(instructions)
        if self.tools:
            declared = [
                harmony.ToolDescription.new(tool.name, tool.description, tool.parameters)
                for tool in self.tools
            ]
            developer = developer.with_function_tools(declared)
        message = harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, developer)
        self.messages.append(message)

    def ask(self, text: str) -> "Dialogue":
        self.messages.append(harmony.Message.from_role_and_content(harmony.Role.USER, text))
        return self

    def answer(self, text: str) -> None:
        self._speak(text, "final")

    def think(self, text: str) -> None:
        self._speak(text, "analysis")

    def _speak(self, text: str, channel: str) -> None:
        message = harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, text)
        self.messages.append(message.with_channel(channel))

    def call(self, tool: Tool, arguments: str) -> None:
        self.called = True
        message = harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, arguments)
        message = message.with_channel("commentary").with_recipient(f"functions.{tool.name}")
        self.messages.append(message.with_content_type("<|constrain|>json"))

    def result(self, tool: Tool, text: str) -> None:
        author = harmony.Author.new(harmony.Role.TOOL, f"functions.{tool.name}")
        message = harmony.Message.from_author_and_content(author, text)
        self.messages.append(message.with_channel("commentary").with_recipient("assistant"))

    def analysis(self, thought: str, detail: str) -> str:
        """The analysis text: the more effort is asked for, the longer."""
        longer = (thought, detail, MORE_EFFORT)
        return " ".join(longer[: EFFORTS.index(self.effort) + 1])

    def sample(self, kind: str, completion: list[int], key: str, call: str | None = None) -> Sample:
        conversation = harmony.Conversation.from_messages(self.messages)
        prompt = encoding().render_conversation_for_completion(conversation, harmony.Role.ASSISTANT)
        declared = {tool.name: tool for tool in self.tools}
        return Sample(kind, prompt, completion, key, declared, call)


def call_thoughts(tool: Tool, subject: str) -> tuple[str, str]:
    """What the analysis says before a call. In a prompt, too, names of functions follow "type"."""
    return f"It is about {subject}. I will call type {tool.name} with {tool.subject}.", "It fits."


def final(analysis: str, text: str) -> list[int]:
    """The completion that thinks and answers, up to and including `<|return|>`."""
    return _encode(
        f"<|channel|>analysis<|message|>{analysis}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{text}<|return|>"
    )


def call(analysis: str, name: str, arguments: str) -> list[int]:
    """The completion that thinks and calls a function, up to and including `<|call|>`."""
    return _encode(
        f"<|channel|>analysis<|message|>{analysis}<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
    )


def _encode(text: str) -> list[int]:
    tokens: list[int] = encoding().encode(text, allowed_special="all")
    return tokens
