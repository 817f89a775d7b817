"""Faults of the kinds that servers like this one have had, as edits of our own source."""

import sys
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

REGISTRY = "postproc_workers.registry"
HARMONY = "postproc_workers.harmony"
STREAMS = "frontend.streams"
LEDGER = "engine.ledger"


@dataclass(frozen=True)
class Fault:
    """An edit of one module: each pair is a text that occurs once, and what replaces it."""

    name: str
    module: str
    edits: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return self.name

    def source(self) -> str:
        """The module's source with the fault planted. Raises ValueError if it does not fit."""
        spec = find_spec(self.module)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text()
        for old, new in self.edits:
            if source.count(old) != 1:
                raise ValueError(f"{self.name}: {source.count(old)} places for {old!r}")
            source = source.replace(old, new)
        return source

    def planted(self) -> ModuleType:
        """A module of its own with the fault in it; the real one stays as it is."""
        spec = find_spec(self.module)
        assert spec is not None
        assert spec.origin is not None
        module = module_from_spec(spec)
        module.__name__ = f"{self.module}_with_a_fault"
        sys.modules[module.__name__] = module
        try:
            exec(compile(self.source(), spec.origin, "exec"), module.__dict__)
        finally:
            del sys.modules[module.__name__]
        return module


def fault(name: str, module: str, *edits: tuple[str, str]) -> Fault:
    return Fault(name, module, edits)


REGISTRY_FAULTS = [
    fault(
        "an ErrorResponse is not terminal",
        REGISTRY,
        ("        for response in step.errors:\n", "        for response in ():\n"),
    ),
    fault(
        "an abort keeps the state",
        REGISTRY,
        (
            "            self._release(stream, Event.MOVED if abort.moved else Event.ABORT)\n",
            "            self.released['abort'] += 1\n",
        ),
    ),
    fault(
        "tokens are taken under any lease",
        REGISTRY,
        ("if stream is None or stream.lease != entry.lease:", "if stream is None:"),
    ),
    fault(
        "aborts and failures are taken under any lease",
        REGISTRY,
        ("if stream is None or stream.lease != lease:", "if stream is None:"),
    ),
    fault(
        "an owner of another epoch is taken for the owner",
        REGISTRY,
        (
            "if owned is None or owned.epoch != owner.epoch or not owned.present:",
            "if owned is None or not owned.present:",
        ),
    ),
    fault(
        "a lost owner can still send",
        REGISTRY,
        (
            "if owned is None or owned.epoch != owner.epoch or not owned.present:",
            "if owned is None or owned.epoch != owner.epoch:",
        ),
    ),
    fault(
        "a stale Open is accepted",
        REGISTRY,
        ("if opening.lease <= owned.highest_lease:", "if False:"),
    ),
    fault(
        "an Open with the same lease is accepted",
        REGISTRY,
        ("if opening.lease <= owned.highest_lease:", "if opening.lease < owned.highest_lease:"),
    ),
    fault(
        "the highest lease is not remembered",
        REGISTRY,
        ("        owned.highest_lease = opening.lease\n", ""),
    ),
    fault(
        "a reopened stream leaks its earlier state",
        REGISTRY,
        ("            self._release(earlier, Event.OPEN)\n", "            pass\n"),
    ),
    fault(
        "a final stream keeps its state",
        REGISTRY,
        (
            "        self._release(stream, Event.FINAL)\n",
            "        self.released['final'] += 1\n",
        ),
    ),
    fault(
        "a final stream is released with the wrong reason",
        REGISTRY,
        (
            "        self._release(stream, Event.FINAL)\n",
            "        self._release(stream, Event.FAIL)\n",
        ),
    ),
    fault(
        "a stream that fails keeps its state",
        REGISTRY,
        (
            "        self._release(stream, event)\n        if stream.resume",
            "        self.released['error'] += 1\n        if stream.resume",
        ),
    ),
    fault(
        "an exception in one stream fails the batch",
        REGISTRY,
        (
            "                output = self._end_by_exception(stream, error, now)\n",
            "                raise\n",
        ),
    ),
    fault(
        "an exception is swallowed and its stream goes on",
        REGISTRY,
        (
            "                output = self._end_by_exception(stream, error, now)\n",
            "                output = None\n",
        ),
    ),
    fault(
        "a lost owner's streams stay",
        REGISTRY,
        (
            "        for stream in list(owned.live.values()):\n"
            "            self._release(stream, Event.OWNER_LOST)\n",
            "",
        ),
    ),
    fault(
        "repeated tokens are processed again",
        REGISTRY,
        ("            ids, logprobs = _from(stream.position - entry.start, ids, logprobs)\n", ""),
    ),
    fault(
        "a gap in the tokens is passed over",
        REGISTRY,
        (
            "                raise LostTokensError(stream.position, entry.start)\n",
            "                pass\n",
        ),
    ),
    fault(
        "the end is not flushed",
        REGISTRY,
        ('        processor.finish(finish or Finish("stop"), now)\n', ""),
    ),
    fault(
        "an early end is overlooked",
        REGISTRY,
        (
            "        if finish is None and not processor.ended_early:\n",
            "        if finish is None:\n",
        ),
    ),
    fault(
        "a stream is opened without a count",
        REGISTRY,
        ("        self.opened += 1\n", ""),
    ),
    fault(
        "stale messages are not counted",
        REGISTRY,
        ("        else:\n            self.stale += 1\n", "        else:\n            pass\n"),
    ),
    fault(
        "released streams are remembered for ever",
        REGISTRY,
        (
            "        self.released[reason.value] += 1\n",
            "        self.released[reason.value] += 1\n"
            "        self.__dict__.setdefault('ended', []).append(stream.lease + 10_000)\n",
        ),
    ),
    fault(
        "a moved stream repeats its opening events",
        REGISTRY,
        (
            "        if opening.resume is not None and opening.resume.begun:\n"
            "            processor.take()\n",
            "",
        ),
    ),
    fault(
        "a moved stream says again what its client has",
        REGISTRY,
        (
            "    if resume.begun:\n        stream.processor.take()\n",
            "    if resume.begun:\n",
        ),
    ),
    fault(
        "a moved stream counts from 0 again",
        REGISTRY,
        ("        stream.processor.renumber(resume.next_sequence)\n", ""),
    ),
    fault(
        "an idle stream is never released",
        REGISTRY,
        ("                    self._release(stream, Event.IDLE)\n", ""),
    ),
]

PARSER_FAULTS = [
    fault(
        "a split glyph is lost between steps",
        HARMONY,
        (
            "        escaped = self._table.escaped\n",
            "        escaped = self._table.escaped\n"
            "        if self._glyphs is not None:\n"
            "            self._glyphs, self._plain = None, True\n",
        ),
    ),
    fault(
        "a header is forgotten between steps",
        HARMONY,
        (
            "        escaped = self._table.escaped\n",
            "        escaped = self._table.escaped\n        self._header = []\n",
        ),
    ),
    fault(
        "the last token of a step is lost",
        HARMONY,
        ("        iterator = iter(tokens)\n", "        iterator = iter(tokens[:-1])\n"),
    ),
]

STREAMS_FAULTS = [
    fault(
        "an ended stream's worker load is not given back",
        STREAMS,
        (
            "            self._pool.load[handle.worker] -= 1\n            if terminal is None:\n",
            "            if terminal is None:\n",
        ),
    ),
    fault(
        "a client that leaves is not told to the worker",
        STREAMS,
        ("self._pool.send(handle.worker, Abort(opening.stream_id, opening.lease))", "pass"),
    ),
    fault(
        "a client that leaves is not told to the engine",
        STREAMS,
        ("        self._engine.send(Cancel(opening.stream_id, opening.lease))\n", ""),
    ),
    fault(
        "outputs of an earlier life are delivered",
        STREAMS,
        (
            "if handle is None or handle.opening.lease != lease or handle.worker != worker:",
            "if handle is None:",
        ),
    ),
    fault(
        "a moved stream is told to begin anew",
        STREAMS,
        ("            resume=Resume(handle.tokens, handle.next_sequence, handle.begun),\n", ""),
    ),
    fault(
        "a moved stream's tokens are not asked for again",
        STREAMS,
        (
            "            self._engine.send(Reassign(opening.stream_id, worker, opening.lease))\n",
            "",
        ),
    ),
    fault(
        "a stream that kills its workers is moved for ever",
        STREAMS,
        ("            if handle is suspect and handle.lost_workers:\n", "            if False:\n"),
    ),
    fault(
        "all streams of a worker are blamed for its death",
        STREAMS,
        (
            "            if handle is suspect and handle.lost_workers:\n",
            "            if suspect:\n",
        ),
    ),
    fault(
        "a killed worker's streams arrive at once",
        STREAMS,
        (
            "[w for w in self._pool.up if not (handle.asked and w in self._arriving)]",
            "self._pool.up",
        ),
    ),
]

LEDGER_FAULTS = [
    fault(
        "what a lost frontend had is kept",
        LEDGER,
        (
            "        entries = self._entries.pop(owner, {})\n",
            "        entries = self._entries.get(owner, {})\n",
        ),
    ),
    fault(
        "a moved stream is said from where it was",
        LEDGER,
        (
            "        self._say_tokens(entry, 0, entry.said.copy(), entry.finish, logprobs)\n",
            "        self._say_tokens(entry, len(entry.said), [], entry.finish, logprobs)\n",
        ),
    ),
    fault(
        "the end of a moved stream is not said again",
        LEDGER,
        (
            "        self._say_tokens(entry, 0, entry.said.copy(), entry.finish, logprobs)\n",
            "        self._say_tokens(entry, 0, entry.said.copy(), None, logprobs)\n",
        ),
    ),
]
