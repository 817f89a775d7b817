"""Renders a conversation as the tokens of a Harmony prompt.

openai-harmony renders what the model was trained to see in one wording: the system message and
the TypeScript of the functions. Turns are assembled here. In either way a control token comes
from this module alone: a client's text is encoded as ordinary text, whatever it spells.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache

import msgspec
from openai_harmony import (
    DeveloperContent,
    HarmonyEncodingName,
    Message,
    ReasoningEffort,
    RenderOptions,
    Role,
    SystemContent,
    ToolDescription,
    ToolNamespaceConfig,
    load_harmony_encoding,
)

from frontend.conversation import (
    AssistantMessage,
    Conversation,
    DeveloperMessage,
    FunctionCall,
    FunctionResult,
    HarmonyEffort,
    OutputFormat,
    Reasoning,
    Tool,
    Turn,
    UserMessage,
)
from frontend.errors import InvalidRequestError
from frontend.requests.fields import JsonObject
from frontend.tool_schema import plain_schema
from ipc.grammars import recipient
from ipc.vocabulary import (
    FIRST_SPECIAL,
    SIZE,
    SPECIAL_NAMES,
    install_vocabulary,
    special_name,
)

CONSTRAIN, CHANNEL, START, END, MESSAGE, CALL = 200003, 200005, 200006, 200007, 200008, 200012

MAX_RUN = 256
"""Longest run of characters that is encoded as one piece."""
_SEPARATORS = re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~_，。、；：！？（）「」《》“”‘’…—·")  # noqa: RUF001
_LONG_RUN = re.compile(
    rf"(?<![^\s\d{_SEPARATORS}])[^\s\d{_SEPARATORS}]{{{MAX_RUN + 1},}}+"
    rf"|(?:[^\w\s]|_){{{MAX_RUN + 1},}}+"
    rf"|(?<!\s)\s{{{MAX_RUN + 1},}}+"
)

COUNTED_AT_ONCE = 65_536
"""Characters of a text that may be too long that are encoded before its tokens are counted."""
PART = 16_384
"""Characters of a text that are encoded in one go where others are to have their turn: 5 to 10 ms.
"""
_BOUNDARY = re.compile(rf"(?<=\S)(?= )|(?<=[^\W_])(?!')(?=[\s{_SEPARATORS}])")
"""Where a token ends in any case: before a space, and behind a word or a number."""
_SPECIAL = re.compile(
    "|".join(map(re.escape, SPECIAL_NAMES.values())) + r"|<\|reserved_20[01]\d{3}\|>"
)
_SPECIAL_TOKENS = {special_name(token): token for token in range(FIRST_SPECIAL, SIZE)}

TOKENS_OF_A_CUT = 64
"""More than a cut in the middle of a word can add to the number of tokens."""
TOKENS_OF_A_TURN = 4
"""The least that a turn takes besides its text."""

MOST_CHARACTERS_OF_A_TOKEN = 128
"""The longest token of the vocabulary is one of 128 spaces."""

TEXT: JsonObject = {"type": "string"}
"""What a custom tool takes: shown as `(_: string) => any`."""

Namespaces = tuple[tuple[str, str], ...]

CACHED_TOOL_LISTS = 64
CACHED_TOKENS = 16_384
"""A longer list of tools is not worth its memory."""


def long_runs(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each run of more than MAX_RUN letters, marks or spaces in `text`.

    The vocabulary's pattern takes such a run as one piece, and byte pair encoding in
    openai-harmony 0.0.8 takes time quadratic in a piece: 0.4 s for 40,000 letters.
    """
    if _has_long_word(text):
        yield from (run.span() for run in _LONG_RUN.finditer(text))


def _has_long_word(text: str) -> bool:
    """Whether a stretch of MAX_RUN / 2 characters is all spaces or has none; a look is cheap."""
    step = MAX_RUN // 2
    stretches = (text[start : start + step] for start in range(0, len(text) - step + 1, step))
    return any(part.isspace() or len(part.split(None, 1)[0]) == step for part in stretches)


class PromptTooLongError(Exception):
    """The prompt has more tokens than the limit; how many was not counted to the end."""


class PromptRenderer:
    """Renders prompts; loads the bundled vocabulary when it is made.

    Raises VocabularyError if that cannot be loaded.
    """

    def __init__(self) -> None:
        install_vocabulary()
        self._encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        self._tools: OrderedDict[bytes, list[int]] = OrderedDict()  # by what they were made of
        self._system = lru_cache(maxsize=16)(self._render_system)
        self._header = lru_cache(maxsize=256)(self._encode)

    def render(
        self,
        conversation: Conversation,
        today: date,
        limit: int | None = None,
        *,
        truncate: bool = False,
    ) -> list[int]:
        """The prompt's token ids, from the system message to `<|start|>assistant`.

        `today` is the date that the model is told, in UTC. With `truncate` the earliest turns are
        left out as far as the `limit` makes it necessary. Raises InvalidRequestError for a tool
        that cannot be shown to the model, and PromptTooLongError, early, for a prompt whose length
        is out of proportion to the `limit`: encoding it would take seconds.
        """
        turns = conversation.turns
        if limit is not None:
            if truncate:
                conversation = replace(conversation, turns=())
            self._check_length(conversation, limit)
        tokens = list(self._system(conversation.effort, today, bool(conversation.tools)))
        shown = _shown_format(conversation.format)
        if conversation.instructions or conversation.tools or shown:
            tokens += self._developer(
                conversation.instructions, conversation.tools, shown, conversation.namespaces
            )
        if truncate and limit is not None:
            tokens += self._latest(turns, limit - len(tokens) - TOKENS_OF_A_TURN)
        else:
            for turn in turns:
                tokens += self._turn(turn)
        tokens.append(START)
        tokens += self._header("assistant")
        return tokens

    def _latest(self, turns: Sequence[Turn], room: int) -> list[int]:
        """As many of the last turns as there is `room` for. The last one stays in any case, and
        no result of a call stays without it."""
        kept: list[list[int]] = []
        for place in range(len(turns) - 1, -1, -1):
            turn = turns[place]
            if kept and len(turn_text(turn)) > room * MOST_CHARACTERS_OF_A_TOKEN:
                break
            tokens = self._turn(turn)
            if kept and len(tokens) > room:
                break
            room -= len(tokens)
            kept.append(tokens)
        first = len(turns) - len(kept)
        while len(kept) > 1 and isinstance(turns[first], FunctionResult):
            kept.pop()
            first += 1
        return [token for tokens in reversed(kept) for token in tokens]

    def encode(self, text: str) -> list[int]:
        """The tokens of ordinary text. Never a control token; time linear in the text's length."""
        tokens: list[int] = []
        start = 0
        for run_start, run_end in long_runs(text):
            for cut in range(run_start + MAX_RUN, run_end, MAX_RUN):
                tokens += self._encode(text[start:cut])
                start = cut
        return tokens + self._encode(text[start:]) if start else self._encode(text)

    def encode_parts(
        self, text: str, *, special: bool = False, size: int = PART
    ) -> Iterator[list[int]]:
        """The tokens of a text, those of about `size` characters at a time: together what `encode`
        makes of it, but where nothing ends within so many. With `special` the names of special
        tokens stand for them."""
        start = 0
        for name in _SPECIAL.finditer(text) if special else ():
            token = _SPECIAL_TOKENS.get(name[0])
            if token is not None:
                yield from self._ordinary_parts(text[start : name.start()], size)
                yield [token]
                start = name.end()
        yield from self._ordinary_parts(text[start:], size)

    def _ordinary_parts(self, text: str, size: int) -> Iterator[list[int]]:
        start = 0
        while len(text) - start > size:
            found = _BOUNDARY.search(text, start + size, start + 2 * size)
            end = start + 2 * size if found is None else found.start()
            yield self.encode(text[start:end])
            start = end
        yield self.encode(text[start:])

    def _check_length(self, conversation: Conversation, limit: int) -> None:
        """Raise PromptTooLongError if the conversation's text is long and has too many tokens."""
        if len(msgspec.json.encode(conversation.tools)) > 16 * limit:
            raise PromptTooLongError
        texts = list(_texts(conversation))
        if sum(map(len, texts)) <= 4 * limit:
            return
        tokens = 0
        for text in texts:
            tokens += TOKENS_OF_A_TURN
            for start in range(0, len(text), COUNTED_AT_ONCE):
                tokens += len(self.encode(text[start : start + COUNTED_AT_ONCE]))
                tokens -= TOKENS_OF_A_CUT if start else 0
                if tokens > limit:
                    raise PromptTooLongError

    def _encode(self, text: str) -> list[int]:
        return self._encoding.encode(text, disallowed_special=())

    def _render_system(self, effort: HarmonyEffort, today: date, has_tools: bool) -> list[int]:
        content = (
            SystemContent.new()
            .with_conversation_start_date(today.isoformat())
            .with_reasoning_effort(ReasoningEffort[effort.upper()])
        )
        return self._encoding.render(
            Message.from_role_and_content(Role.SYSTEM, content),
            RenderOptions(conversation_has_function_tools=has_tools),
        )

    def _developer(
        self,
        instructions: str,
        tools: tuple[Tool, ...],
        output_format: str = "",
        namespaces: Namespaces = (),
    ) -> list[int]:
        """The developer message; a line end before the tools is a token boundary in any case."""
        tokens = [START, *self._header("developer"), MESSAGE]
        if instructions:
            blank = "\n\n" if tools or output_format else ""
            tokens += self.encode(f"# Instructions\n\n{instructions}{blank}")
        if tools:
            tokens += self._tool_tokens(tools, namespaces)
        if output_format:
            blank = "\n\n" if tools else ""
            tokens += self.encode(f"{blank}# Response Formats\n\n{output_format}")
        tokens.append(END)
        return tokens

    def _tool_tokens(self, tools: tuple[Tool, ...], namespaces: Namespaces) -> list[int]:
        """The tools as TypeScript; clients send the same list with every turn."""
        key = hashlib.sha256(msgspec.json.encode((tools, namespaces))).digest()
        found = self._tools.get(key)
        if found is None:
            found = self._render_tools(tools, dict(namespaces))
            if len(found) <= CACHED_TOKENS:
                self._tools[key] = found
            if len(self._tools) > CACHED_TOOL_LISTS:
                self._tools.popitem(last=False)
        else:
            self._tools.move_to_end(key)
        return found

    def _render_tools(self, tools: tuple[Tool, ...], descriptions: dict[str, str]) -> list[int]:
        spaces: dict[str, list[ToolDescription]] = {}
        for tool in tools:
            spaces.setdefault(tool.name.rpartition(".")[0], []).append(_described(tool))
        content = DeveloperContent.new()
        for space, described in spaces.items():
            if space:
                told = descriptions.get(space) or None
                config = ToolNamespaceConfig(name=space, description=told, tools=described)
                content = content.with_tools(config)
            else:
                content = content.with_function_tools(described)
        try:
            message = self._encoding.render(Message.from_role_and_content(Role.DEVELOPER, content))
        except ValueError as error:  # a number that its JSON reader finds too large, for one
            raise InvalidRequestError(f"Invalid 'tools': {error}.", param="tools") from error
        return message[message.index(MESSAGE) + 1 : -1]

    def _turn(self, turn: Turn) -> list[int]:
        match turn:
            case DeveloperMessage(text):
                return self._developer(text, ())
            case UserMessage(text):
                return [START, *self._header("user"), MESSAGE, *self.encode(text), END]
            case AssistantMessage(text, channel):
                return self._said(channel, text)
            case Reasoning(text):
                return self._said("analysis", text)
            case FunctionCall():
                return self._call(turn)
            case FunctionResult():
                return self._result(turn)

    def _said(self, channel: str, text: str) -> list[int]:
        header = [START, *self._header("assistant"), CHANNEL, *self._header(channel)]
        return [*header, MESSAGE, *self.encode(text), END]

    def _call(self, call: FunctionCall) -> list[int]:
        header = [START, *self._header(f"assistant to={recipient(call.name)}"), CHANNEL]
        if call.custom:
            header += self._header("commentary")
        else:
            header += [*self._header("commentary "), CONSTRAIN, *self._header("json")]
        return [*header, MESSAGE, *self.encode(call.arguments), CALL]

    def _result(self, result: FunctionResult) -> list[int]:
        header = [START, *self._header(f"{recipient(result.name)} to=assistant"), CHANNEL]
        header += self._header("commentary")
        return [*header, MESSAGE, *self.encode(result.output), END]


def _texts(conversation: Conversation) -> Iterator[str]:
    """What a conversation says, but for the parameters of its tools."""
    yield conversation.instructions
    yield _shown_format(conversation.format)
    for tool in conversation.tools:
        yield tool.description
    yield from map(turn_text, conversation.turns)


def turn_text(turn: Turn) -> str:
    """What a turn says."""
    match turn:
        case FunctionCall(_, text) | FunctionResult(_, text):
            return text
        case _:
            return turn.text


def _shown_format(output_format: OutputFormat | None) -> str:
    """A schema as gpt-oss is shown it, empty if there is none."""
    if output_format is None or output_format.schema is None:
        return ""
    described = f"// {output_format.description}\n" if output_format.description else ""
    schema = msgspec.json.encode(output_format.schema).decode()
    return f"## {output_format.name}\n\n{described}{schema}"


def _described(tool: Tool) -> ToolDescription:
    parameters = None if tool.parameters is None else plain_schema(tool.parameters)
    if tool.custom:
        parameters = TEXT
    for text in (tool.description, *_strings(parameters)):
        if any(long_runs(text)):
            raise InvalidRequestError(
                f"Invalid 'tools': {tool.name} has more than {MAX_RUN} characters in a row "
                "without a break.",
                param="tools",
            )
    return ToolDescription.new(tool.name.rpartition(".")[2], tool.description, parameters)


def _strings(value: object) -> Iterator[str]:
    """All strings in a JSON value, names of members included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, child in value.items():
            yield name
            yield from _strings(child)
    elif isinstance(value, list):
        for child in value:
            yield from _strings(child)
