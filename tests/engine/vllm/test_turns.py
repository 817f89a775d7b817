"""Turns inside vLLM: rows that grow, come and go, and what each may say next."""

from typing import Any

from engine.vllm.turns import Turn, allowed, packed, turn_of
from ipc.messages import Constraint, Grammar
from ipc.vocabulary import CHANNEL, MESSAGE, RETURN, SIZE, token_bytes

FINAL = token_bytes().index(b"final")
A, B, C, D = (token_bytes().index(letter) for letter in (b"a", b"b", b"c", b"d"))
AB, AC = (token_bytes().index(letters) for letters in (b"ab", b"ac"))
HEADER = [CHANNEL, FINAL, MESSAGE]


def make_turn(pattern: str, said: list[int]) -> Turn:
    turn = turn_of(packed(Constraint(final=Grammar("regex", pattern))), said)
    assert turn is not None
    return turn


def possible(turns: dict[int, Turn], vocabulary: int = SIZE) -> dict[int, list[int]]:
    rows, masks = allowed(turns, vocabulary)
    assert masks.shape == (len(turns), vocabulary)
    return {row: mask.nonzero()[0].tolist() for row, mask in zip(rows, masks, strict=True)}


def test_only_requests_that_ask_for_it_are_constrained() -> None:
    others: list[Any] = [None, {}, {"other": "x"}, {"antiphon_constraint": 3}]
    assert [turn_of(arguments, []) for arguments in others] == [None] * len(others)


def test_a_turn_is_followed_as_its_list_grows() -> None:
    said: list[int] = []
    turns = {4: make_turn("a[bc]?", said)}
    assert possible(turns) == {4: [CHANNEL]}
    said += HEADER
    # With the tokens that are its two letters.
    assert possible(turns) == {4: sorted([A, AB, AC])}
    assert possible(turns) == {4: sorted([A, AB, AC])}
    said.append(A)
    assert possible(turns) == {4: sorted([B, C, RETURN])}


def test_a_turn_that_comes_back_is_followed_from_its_first_token() -> None:
    """As after a preemption: its row is made anew, with what it had said."""
    assert possible({0: make_turn("a[bd]", [*HEADER, A])}) == {0: [B, D]}


def test_each_row_has_its_own() -> None:
    turns = {7: make_turn("a", HEADER), 2: make_turn("b", HEADER)}
    assert list(possible(turns)) == [2, 7]
    assert possible(turns) == {2: [B], 7: [A]}


def test_a_turn_that_has_left_its_constraint_can_only_end() -> None:
    turns = {0: make_turn("a", [*HEADER, B]), 1: make_turn("a", HEADER)}
    assert possible(turns) == {0: [RETURN], 1: [A]}
    assert possible({0: turns[0]}) == {0: [RETURN]}


def test_padded_rows_are_never_possible() -> None:
    assert possible({0: make_turn("a", HEADER)}, SIZE + 64) == {0: [A]}
