"""An engine without a model: it replays given tokens at given rates, with given errors, over the
same messages. Tests and benchmarks start it as `python -m engine.scripted`.

A request picks its script by its seed: script number `seed` of the list. Without a seed it is the
first that is for its prompt and not used up. `max_tokens`, the context length and cancels are
honoured; a prompt is checked and otherwise not looked at.
"""

import argparse
import heapq
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from engine.admission import RequestError, check_request
from engine.executor import add_engine_options, serve
from engine.ledger import Entry, ErrorCode, Ledger, Steps
from ipc.messages import (
    PROTOCOL_VERSION,
    BlockEvents,
    EngineInfo,
    EngineStatus,
    Finish,
    GenerationRequest,
    Owner,
    Reassign,
)
from ipc.process import EXIT_CONFIGURATION, log_to_standard_error
from ipc.security import SecurityError
from ipc.vocabulary import SIZE, token_bytes

log = logging.getLogger(__name__)

INFO = EngineInfo(PROTOCOL_VERSION, "scripted", context_length=131_072, vocabulary_size=SIZE)


class ScriptedError(Struct, frozen=True, forbid_unknown_fields=True):
    """End the sequence with an error after its first `after` tokens: in the step of the last of
    them, or, if not `with_tokens`, in a step of its own."""

    after: int
    code: ErrorCode = "internal"
    message: str = "a scripted error"
    with_tokens: bool = True


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """What one sequence does. Times are in seconds.

    `tokens` are token ids or the name of a trace. The first step comes `delay` after the request,
    the others in steps of `interval` (0: as fast as the engine can). `then` is what happens after
    the last token: `stop` ends the sequence with it, `length` does so as if max_tokens were
    reached, `repeat` starts over, `hang` says nothing any more, `freeze` lets the step of the last
    token never end.

    `prompt` is a text that a request's prompt must hold, `times` how often the script is to be
    found by that: so the turns of a conversation, or an error and what a second try brings, are
    scripts that stand one after the other, the last turn first.
    """

    tokens: list[int] | str
    tokens_per_step: int = 1
    interval: float = 0.0
    delay: float = 0.0
    error: ScriptedError | None = None
    then: Literal["stop", "length", "repeat", "hang", "freeze"] = "stop"
    prompt: str = ""
    times: int | None = None


class ScriptFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON file of scripts, and of the traces that they name."""

    scripts: list[Script]
    traces: dict[str, list[int]] = {}


class ScriptFileError(Exception):
    """A script file cannot be used; the message says why."""


def load_scripts(path: Path) -> list[Script]:
    """The scripts of a file, names of traces resolved. Raises ScriptFileError."""
    try:
        return resolve(msgspec.json.decode(path.read_bytes(), type=ScriptFile))
    except (OSError, msgspec.DecodeError) as error:
        raise ScriptFileError(f"{path}: {error}") from error


def resolve(file: ScriptFile) -> list[Script]:
    """The scripts of a file, names of traces resolved. Raises ScriptFileError."""
    if not file.scripts:
        raise ScriptFileError("there are no scripts")
    return [_resolved(script, file.traces) for script in file.scripts]


def _resolved(script: Script, traces: dict[str, list[int]]) -> Script:
    tokens = script.tokens
    if isinstance(tokens, str):
        if tokens not in traces:
            raise ScriptFileError(f"there is no trace named {tokens}")
        tokens = traces[tokens]
    if not tokens and (script.error is None or script.then == "repeat"):
        raise ScriptFileError("a script needs tokens, or an error instead")
    if script.error is not None and not _reached(script.error, script, tokens):
        raise ScriptFileError("a scripted error must come after 0 to all of the tokens")
    if script.tokens_per_step < 1 or script.interval < 0 or script.delay < 0:
        raise ScriptFileError("tokens_per_step must be at least 1, seconds at least 0")
    if script.times is not None and script.times < 1:
        raise ScriptFileError("times must be at least 1")
    return msgspec.structs.replace(script, tokens=tokens)


def _reached(error: ScriptedError, script: Script, tokens: list[int]) -> bool:
    return error.after >= 0 and (script.then == "repeat" or error.after <= len(tokens))


@dataclass(slots=True, eq=False)
class Replay:
    """A sequence that follows a script: `length` tokens of `tokens`, over and over if need be,
    then `finish`, or `error`, or, with neither, silence."""

    entry: "Entry[Replay]"
    script: Script
    tokens: list[int]
    length: int
    finish: Finish | None = None
    error: ScriptedError | None = None
    said: int = 0
    live: bool = True

    def stop(self) -> None:
        """Say nothing more."""
        self.live = False

    def next_tokens(self) -> list[int]:
        """The tokens of the next step, which count as said."""
        start, size = self.said, len(self.tokens)
        end = min(start + self.script.tokens_per_step, self.length)
        self.said = end
        if end <= size:
            return self.tokens[start:end]
        return [self.tokens[place % size] for place in range(start, end)]


class ScriptedCore:
    """The engine core that follows scripts. `clock` gives seconds, monotonic."""

    def __init__(
        self, scripts: Sequence[Script], clock: Callable[[], float], info: EngineInfo = INFO
    ) -> None:
        self.info = info
        self._scripts = scripts
        self._found = Counter[int]()
        self._vocabulary = token_bytes() if any(script.prompt for script in scripts) else []
        self._clock = clock
        self._ledger = Ledger[Replay]()
        self._due: list[tuple[float, int, Replay]] = []
        self._order = count()
        self._steps = self._generated_tokens = self._prompt_tokens = 0

    def hello(self, owner: Owner) -> None:
        self._ledger.hello(owner)

    def add(self, owner: Owner, request: GenerationRequest) -> None:
        entry = self._ledger.open(owner, request, drop=Replay.stop)
        if entry is None:
            return
        try:
            check_request(request, self.info)
            room = self.info.context_length - len(request.prompt)
            most = min(request.sampling.max_tokens, room)
            replay = _replay(entry, self._script(request), most)
        except RequestError as error:
            self._ledger.say_error(entry, error.code, str(error))
            return
        entry.sequence = replay
        self._prompt_tokens += len(request.prompt)
        self._schedule(replay, self._clock() + replay.script.delay)

    def cancel(self, owner: Owner, stream_id: int, lease: int) -> None:
        replay = self._ledger.close(owner, stream_id, lease)
        if replay is not None:
            replay.stop()

    def reassign(self, owner: Owner, message: Reassign) -> None:
        self._ledger.reassign(owner, message)

    def watch_blocks(self, owner: Owner) -> None:
        """There is no cache to tell of."""

    def block_events(self) -> dict[Owner, BlockEvents]:
        return {}

    def owner_lost(self, owner: Owner) -> None:
        for replay in self._ledger.forget(owner):
            replay.stop()

    def shut_down(self) -> None:
        self._ledger.shut_down(Replay.stop)

    def wait(self) -> float | None:
        if self._ledger.unsent:
            return 0.0
        while self._due and not self._due[0][2].live:
            heapq.heappop(self._due)
        return max(0.0, self._due[0][0] - self._clock()) if self._due else None

    def step(self) -> Steps:
        now = self._clock()
        due = []
        while self._due and self._due[0][0] <= now:
            due.append(heapq.heappop(self._due))
        self._steps += bool(due)
        for at, _, replay in due:
            if replay.live:
                self._advance(replay, at)
        return self._ledger.take()

    def status(self) -> EngineStatus:
        return EngineStatus(
            running=len(self._ledger.live()),
            waiting=0,
            free_blocks=0,
            total_blocks=0,
            steps=self._steps,
            generated_tokens=self._generated_tokens,
            prompt_tokens=self._prompt_tokens,
            preemptions=0,
            errors=self._ledger.errors,
            rejected=self._ledger.stale,
            kept=self._ledger.kept,
        )

    def _script(self, request: GenerationRequest) -> Script:
        number = request.sampling.seed
        if number is None:
            return self._find(request.prompt)
        if not 0 <= number < len(self._scripts):
            raise RequestError("invalid_request", f"there is no script number {number}")
        return self._scripts[number]

    def _find(self, prompt: Sequence[int]) -> Script:
        """The first script that is for `prompt` and not used up, which counts as found."""
        ordinary = (self._vocabulary[token] for token in prompt if token < len(self._vocabulary))
        text = b"".join(ordinary)
        for number, script in enumerate(self._scripts):
            used_up = script.times is not None and self._found[number] >= script.times
            if not used_up and script.prompt.encode() in text:
                self._found[number] += 1
                return script
        raise RequestError("invalid_request", "there is no script for this prompt")

    def _schedule(self, replay: Replay, at: float) -> None:
        heapq.heappush(self._due, (at, next(self._order), replay))

    def _advance(self, replay: Replay, at: float) -> None:
        """Say the next tokens of a replay, and how it ends if it does."""
        ids = replay.next_tokens()
        self._generated_tokens += len(ids)
        complete = replay.said == replay.length
        if complete and replay.script.then == "freeze":
            threading.Event().wait()
        finish = replay.finish if complete else None
        if ids:
            self._ledger.say(replay.entry, ids, finish)
        error = replay.error
        if complete and error is not None and (error.with_tokens or not ids):
            replay.stop()
            self._ledger.say_error(replay.entry, error.code, error.message)
        elif finish is not None:
            replay.stop()
        elif not complete or error is not None:
            self._schedule(replay, at + replay.script.interval)


def _replay(entry: Entry[Replay], script: Script, most: int) -> Replay:
    tokens = script.tokens
    if isinstance(tokens, str):
        raise TypeError(f"the trace {tokens} is not resolved")
    replay = Replay(
        entry=entry,
        script=script,
        tokens=tokens,
        length=most if script.then == "repeat" else min(most, len(tokens)),
    )
    if script.error is not None and script.error.after <= replay.length:
        replay.length, replay.error = script.error.after, script.error
    elif len(tokens) <= most and script.then == "stop":
        replay.finish = Finish("stop")
    elif replay.length == most or script.then == "length":
        replay.finish = Finish("length")
    return replay


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process."""
    parser = argparse.ArgumentParser(prog="python -m engine.scripted", description=__doc__)
    parser.add_argument("--scripts", type=Path, required=True, metavar="FILE", help="JSON file")
    parser.add_argument("--name", default=INFO.model, help="what clients call the model")
    parser.add_argument(
        "--context-length", type=int, default=INFO.context_length, metavar="N", help="in tokens"
    )
    add_engine_options(parser)
    options = parser.parse_args(arguments)
    log_to_standard_error("scripted engine", options.log_level)
    info = msgspec.structs.replace(INFO, model=options.name, context_length=options.context_length)
    try:
        serve(ScriptedCore(load_scripts(options.scripts), time.monotonic, info), options)
    except (ScriptFileError, SecurityError) as error:
        log.critical("%s", error)
        sys.exit(EXIT_CONFIGURATION)


if __name__ == "__main__":
    main()
