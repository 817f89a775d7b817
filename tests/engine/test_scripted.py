"""The scripted core on a clock of the test's own, and its script files."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.ledger import Steps
from engine.scripted import (
    Script,
    ScriptedCore,
    ScriptedError,
    ScriptFile,
    ScriptFileError,
    load_scripts,
    resolve,
)
from ipc.messages import ErrorResponse, Finish, Owner, Step, Tokens
from ipc.vocabulary import START, token_bytes
from tests.engine.builders import OWNER, make_request

FOUR = [10, 11, 12, 13]


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_core(*scripts: Script) -> tuple[ScriptedCore, Clock]:
    clock = Clock()
    return ScriptedCore(resolve(ScriptFile(list(scripts))), clock), clock


def only(steps: Steps) -> Step:
    [step] = steps.values()
    return step


def play(core: ScriptedCore, clock: Clock, most: int = 100) -> list[tuple[float, Step]]:
    """Step whenever there is something to do, with the seconds since the start."""
    start = clock.now
    heard: list[tuple[float, Step]] = []
    while (wait := core.wait()) is not None and len(heard) < most:
        clock.now += wait
        heard.append((round(clock.now - start, 6), only(core.step())))
    return heard


def replayed(script: Script, **sampling: Any) -> list[tuple[float, Step]]:
    core, clock = make_core(script)
    core.add(OWNER, make_request(**({"max_tokens": 100} | sampling)))
    heard = play(core, clock)
    assert core.status().running == (1 if script.then == "hang" else 0)
    return heard


def test_free_running() -> None:
    assert replayed(Script(FOUR, tokens_per_step=3)) == [
        (0, Step([Tokens(1, 1, 0, [10, 11, 12])])),
        (0, Step([Tokens(1, 1, 3, [13], Finish("stop"))])),
    ]


def test_paced_after_a_delay() -> None:
    heard = replayed(Script(FOUR, delay=2.0, interval=0.5))
    assert [at for at, _ in heard] == [2.0, 2.5, 3.0, 3.5]


def test_a_late_step_does_not_shift_the_rest() -> None:
    core, clock = make_core(Script(FOUR, interval=1.0))
    core.add(OWNER, make_request())
    core.step()
    clock.now += 1.75
    core.step()
    assert core.wait() == 0.25


@pytest.mark.parametrize(
    ("script", "max_tokens", "ids", "reason"),
    [
        (Script(FOUR), 4, FOUR, "stop"),
        (Script(FOUR), 3, FOUR[:3], "length"),
        (Script(FOUR, then="length"), 100, FOUR, "length"),
        (Script(FOUR, then="hang"), 4, FOUR, "length"),
        (Script(FOUR, then="repeat", tokens_per_step=3), 10, [*FOUR, *FOUR, 10, 11], "length"),
    ],
)
def test_how_a_script_ends(script: Script, max_tokens: int, ids: list[int], reason: str) -> None:
    core, clock = make_core(script)
    core.add(OWNER, make_request(max_tokens=max_tokens))
    tokens = [tokens for _, step in play(core, clock) for tokens in step.tokens]
    assert [token for part in tokens for token in part.ids] == ids
    assert [part.start for part in tokens] == list(range(0, len(ids), script.tokens_per_step))
    assert [part.finish for part in tokens if part.finish] == [Finish(reason)]  # type: ignore[arg-type]
    assert core.status().running == 0


def test_a_hanging_script_says_no_more() -> None:
    [(_, step)] = replayed(Script(FOUR, tokens_per_step=9, then="hang"))
    assert step.tokens == [Tokens(1, 1, 0, FOUR)]


def test_an_error_in_the_step_of_its_last_token() -> None:
    error = ScriptedError(3, "overloaded", "too much")
    heard = replayed(Script(FOUR, tokens_per_step=2, error=error))
    said = ErrorResponse(1, 1, "overloaded", "too much")
    assert [step for _, step in heard] == [
        Step([Tokens(1, 1, 0, [10, 11])]),
        Step([Tokens(1, 1, 2, [12])], (said,)),
    ]


def test_an_error_in_a_step_of_its_own() -> None:
    error = ScriptedError(1, with_tokens=False)
    heard = replayed(Script(FOUR, interval=1.0, error=error))
    said = ErrorResponse(1, 1, "internal", "a scripted error")
    assert heard == [(0, Step([Tokens(1, 1, 0, [10])])), (1.0, Step([], (said,)))]


def test_an_error_before_any_token() -> None:
    [(at, step)] = replayed(Script([], delay=1.0, error=ScriptedError(0)))
    assert (at, step.tokens, len(step.errors)) == (1.0, [], 1)


def test_an_error_beyond_max_tokens_does_not_come() -> None:
    [(_, step)] = replayed(Script(FOUR, tokens_per_step=9, error=ScriptedError(4)), max_tokens=3)
    assert step == Step([Tokens(1, 1, 0, FOUR[:3], Finish("length"))])


def test_the_seed_picks_the_script() -> None:
    core, clock = make_core(Script([1]), Script([2]))
    for stream_id, seed in enumerate([None, 1, 2, -1], start=1):
        core.add(OWNER, make_request(stream_id, seed=seed))
    [(_, step)] = play(core, clock)
    assert [tokens.ids for tokens in step.tokens] == [[1], [2]]
    assert [(error.stream_id, error.code) for error in step.errors] == [
        (3, "invalid_request"),
        (4, "invalid_request"),
    ]


def test_a_prompt_finds_its_script() -> None:
    """The first that is for it and not used up, but where a seed names one."""
    vocabulary = token_bytes()
    word = {text: vocabulary.index(text) for text in (b"weather", b" sunny", b"other")}
    core, clock = make_core(
        Script([1], prompt="weather sunny"),
        Script([2], prompt="weather", times=1),
        Script([3], prompt="weather"),
    )
    asked: list[tuple[list[bytes], int | None]] = [
        ([b"weather"], None),
        ([b"weather"], None),
        ([b"weather", b" sunny"], None),
        ([b"other"], 1),
        ([b"other"], None),
    ]
    for stream_id, (prompt, seed) in enumerate(asked, start=1):
        tokens = [START, *(word[text] for text in prompt)]
        core.add(OWNER, make_request(stream_id, prompt=tokens, seed=seed))
    [(_, step)] = play(core, clock)
    assert [tokens.ids for tokens in step.tokens] == [[2], [3], [1], [2]]
    assert [(error.stream_id, error.message) for error in step.errors] == [
        (5, "there is no script for this prompt")
    ]


def test_cancelled_stale_and_lost_sequences_say_nothing() -> None:
    core, clock = make_core(Script(FOUR))
    other = Owner(2, 1)
    for stream_id in (1, 2):
        core.add(OWNER, make_request(stream_id))
    core.add(other, make_request(3))
    core.add(OWNER, make_request(4, lease=1))
    core.cancel(OWNER, 1, lease=9)
    core.cancel(OWNER, 1, lease=1)
    core.cancel(OWNER, 1, lease=1)
    core.owner_lost(other)
    heard = play(core, clock)
    assert {tokens.stream_id for _, step in heard for tokens in step.tokens} == {2}
    assert core.status().rejected == 2


def test_a_newer_lease_replaces_the_sequence_of_its_stream() -> None:
    core, clock = make_core(Script(FOUR))
    core.add(OWNER, make_request(1, lease=1))
    core.add(OWNER, make_request(1, lease=2))
    assert {t.lease for _, step in play(core, clock) for t in step.tokens} == {2}


def test_shutting_down() -> None:
    core, clock = make_core(Script(FOUR, delay=60.0))
    core.add(OWNER, make_request())
    core.shut_down()
    [(at, step)] = play(core, clock)
    assert (at, [error.code for error in step.errors]) == (0, ["overloaded"])


def test_counters() -> None:
    core, clock = make_core(Script(FOUR, tokens_per_step=2))
    core.add(OWNER, make_request())
    play(core, clock)
    status = core.status()
    assert (status.steps, status.generated_tokens, status.prompt_tokens) == (2, 4, 3)


def test_a_file_with_traces(tmp_path: Path) -> None:
    path = tmp_path / "scripts.json"
    text = {"traces": {"four": FOUR}, "scripts": [{"tokens": "four", "interval": 0.1}]}
    path.write_text(json.dumps(text))
    assert load_scripts(path) == [Script(FOUR, interval=0.1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "truncated"),
        ('{"scripts": []}', "no scripts"),
        ('{"scripts": [{"tokens": "five"}]}', "no trace named five"),
        ('{"scripts": [{"tokens": []}]}', "needs tokens"),
        ('{"scripts": [{"tokens": [], "then": "repeat", "error": {"after": 1}}]}', "needs tokens"),
        ('{"scripts": [{"tokens": [1], "error": {"after": 2}}]}', "0 to all of the tokens"),
        ('{"scripts": [{"tokens": [1], "tokens_per_step": 0}]}', "at least 1"),
        ('{"scripts": [{"tokens": [1], "interval": -1}]}', "at least 0"),
        ('{"scripts": [{"tokens": [1], "times": 0}]}', "times must be at least 1"),
        ('{"scripts": [{"tokens": [1], "pace": 1}]}', "unknown field"),
    ],
)
def test_bad_files(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "scripts.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ScriptFileError, match=said):
        load_scripts(path)
