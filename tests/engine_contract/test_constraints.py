"""Constraints, by a random model that a bias and a penalty lead from header to header."""

import re
from collections.abc import Iterator

import pytest

from ipc.messages import Constraint, Grammar
from ipc.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START, token_bytes
from tests.engine_contract.engines import Engine
from tests.engine_contract.frontend import Frontend

NAMES = {
    CHANNEL: b"<|channel|>",
    CONSTRAIN: b"<|constrain|>",
    MESSAGE: b"<|message|>",
    END: b"<|end|>",
    START: b"<|start|>",
    CALL: b"<|call|>",
    RETURN: b"<|return|>",
}
WORD = Grammar("regex", "[ab]{3,5}")


@pytest.fixture(scope="module")
def text_of_token() -> list[bytes]:
    return token_bytes()


@pytest.fixture
def frontend(constraining_engine: Engine) -> Iterator[Frontend]:
    with constraining_engine.frontend() as frontend:
        yield frontend


def text(ids: list[int], text_of_token: list[bytes]) -> str:
    return b"".join(NAMES[i] if i in NAMES else text_of_token[i] for i in ids).decode()


@pytest.mark.parametrize("seed", range(3))
def test_a_turn_that_must_call(frontend: Frontend, text_of_token: list[bytes], seed: int) -> None:
    said = frontend.complete(
        constraint=Constraint(calls={"f": WORD, "g": WORD}, must_call=True),
        max_tokens=80,
        seed=seed,
        logit_bias={END: 100.0},
    )
    assert re.fullmatch(
        r"(<\|channel\|>analysis<\|message\|><\|end\|><\|start\|>assistant)?"
        r"<\|channel\|>commentary to=functions\.[fg] <\|constrain\|>json<\|message\|>"
        r"[ab]{3,5}<\|call\|>",
        text(said.ids, text_of_token),
    )
    assert said.end == "stop"


def test_the_final_message_follows_its_grammar(
    frontend: Frontend, text_of_token: list[bytes]
) -> None:
    """A penalty makes a header of one word, the best one."""
    said = frontend.complete(
        constraint=Constraint(final=WORD),
        max_tokens=20,
        temperature=0.0,
        repetition_penalty=2.0,
        logit_bias={text_of_token.index(b"final"): 100.0, MESSAGE: 80.0},
    )
    whole = text(said.ids, text_of_token)
    assert re.fullmatch(r"<\|channel\|>final<\|message\|>[ab]{3,5}<\|return\|>", whole), whole
    assert said.end == "stop"


def test_beside_others_that_are_free(frontend: Frontend, text_of_token: list[bytes]) -> None:
    """Rows of a batch come and go, and each keeps its own constraint."""
    free = [frontend.generate([9 + n], max_tokens=5 + 4 * n, seed=n) for n in range(5)]
    bound = []
    for number, letters in enumerate(("a", "b", "c", "d")):
        constraint = Constraint(None, {"f": Grammar("regex", f"{letters}{{8}}")}, must_call=True)
        bias = {END: 100.0}
        bound.append(
            frontend.generate(
                [7 + number], constraint=constraint, max_tokens=80, seed=number, logit_bias=bias
            )
        )
        frontend.hear(free[number], at_least=3)
    for stream, letter in zip(bound, "abcd", strict=True):
        said = frontend.hear(stream)
        assert text(said.ids, text_of_token).endswith(f"<|message|>{letter * 8}<|call|>")
    for number, stream in enumerate(free):
        assert len(frontend.hear(stream).ids) == 5 + 4 * number


def test_a_moved_turn_goes_on_under_its_constraint(
    frontend: Frontend, text_of_token: list[bytes]
) -> None:
    constraint = Constraint(calls={"f": Grammar("regex", "a{30}")}, must_call=True)
    stream = frontend.generate(constraint=constraint, max_tokens=80, logit_bias={END: 100.0})
    frontend.hear(stream, at_least=4)
    said = frontend.hear(frontend.reassign(stream, worker=1))
    assert text(said.ids, text_of_token).endswith(f"<|message|>{'a' * 30}<|call|>")


@pytest.mark.parametrize("pattern", ["(", "[z-a]"])
def test_a_grammar_that_does_not_compile(frontend: Frontend, pattern: str) -> None:
    said = frontend.complete(constraint=Constraint(final=Grammar("regex", pattern)))
    assert (said.ids, said.end) == ([], "invalid_request")
    assert "grammar" in said.message
    assert len(frontend.complete(max_tokens=3).ids) == 3
