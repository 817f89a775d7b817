"""What the scripted engine says to clients: a question finds its turn by what its prompt holds.

The last turn of a conversation comes first: its prompt holds the question as well.
"""

from pathlib import Path

import msgspec
from openai_harmony import HarmonyEncodingName, load_harmony_encoding

from engine.scripted import Script, ScriptedError, ScriptFile

HELLO = "Say hello."
WEATHER = "How is it outside in Paris?"
CITY = "Describe the capital of France in JSON."
FAILING = "Say something and fail in the middle."
SHELL = "Count to 42 by the shell."
BASH = "Count to 42 by bash."

ONCE = ("codex", "claude")
"""Whose tests have a first answer that fails."""

GREETING = "Hello there, friend."
REASONING = "A short answer will do."
PREAMBLE = "Let me look."
WEATHER_RESULT = "sunny and 21 degrees"
WEATHER_ANSWER = "It is sunny in Paris, at 21 degrees."
CITY_ANSWER = '{"city": "Paris", "population": 2100000}'
COMMAND = "echo counted-$((6 * 7)) | tee counted.txt"
COMMAND_RESULT = "counted-42"
SHELL_ANSWER = "The shell has counted to 42."
FAILURE = "the executor failed"


def _tokens(markup: str) -> list[int]:
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    return list(encoding.encode(markup, allowed_special="all"))


def answer(text: str) -> list[int]:
    """A turn that reasons and answers `text`."""
    return _tokens(
        f"<|channel|>analysis<|message|>{REASONING}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{text}<|return|>"
    )


def call(function: str, arguments: dict[str, str]) -> list[int]:
    """A turn that reasons, says a preamble and calls `function`."""
    return _tokens(
        f"<|channel|>analysis<|message|>{REASONING}<|end|>"
        f"<|start|>assistant<|channel|>commentary<|message|>{PREAMBLE}<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.{function} <|constrain|>json"
        f"<|message|>{msgspec.json.encode(arguments).decode()}<|call|>"
    )


def failing_once(client: str) -> str:
    """A question whose first answer fails, for one client's test."""
    return f"This is {client}: fail the first time and say hello then."


def write_scripts(directory: Path) -> Path:
    """The script file."""
    greeting = answer(GREETING)
    error = ScriptedError(len(greeting) - 3, "internal", FAILURE, with_tokens=False)
    scripts = [
        Script(answer(WEATHER_ANSWER), prompt=WEATHER_RESULT),
        Script(call("get_weather", {"city": "Paris"}), prompt=WEATHER),
        Script(answer(CITY_ANSWER), prompt=CITY),
        Script(greeting, prompt=FAILING, error=error),
        *(Script(greeting, prompt=failing_once(c), error=error, times=1) for c in ONCE),
        *(Script(greeting, prompt=failing_once(client)) for client in ONCE),
        Script(answer(SHELL_ANSWER), prompt=COMMAND_RESULT),
        Script(call("exec_command", {"cmd": COMMAND}), prompt=SHELL),
        Script(call("Bash", {"command": COMMAND, "description": "Counts"}), prompt=BASH),
        Script(greeting, prompt=HELLO),
    ]
    path = directory / "scripts.json"
    path.write_bytes(msgspec.json.encode(ScriptFile(scripts)))
    return path
