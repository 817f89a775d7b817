"""What is sealed is opened by its key, kind and tenant, unchanged, and by nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from postproc_workers import sealing
from postproc_workers.sealing import KEY_BYTES, make_key, seal, unseal

KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES
SEALED = seal(KEY, "reasoning", "acme", "The user greets me.")
texts = st.text(max_size=200)


@given(texts, st.text(max_size=10))
def test_what_is_sealed_is_opened(text: str, tenant: str) -> None:
    sealed = seal(KEY, "reasoning", tenant, text)
    assert unseal(KEY, "reasoning", tenant, sealed) == text
    assert seal(KEY, "reasoning", tenant, text) == sealed
    assert sealed.isascii()
    assert unseal(OTHER, "reasoning", tenant, sealed) is None
    assert unseal(KEY, "compaction", tenant, sealed) is None
    assert unseal(KEY, "reasoning", tenant + "x", sealed) is None


def test_any_change_of_any_character_opens_nothing() -> None:
    characters = {*SEALED, *"+/-_=. \nAZaz09é"}
    for place in range(len(SEALED) + 1):
        changed = {SEALED[:place] + SEALED[place + 1 :], SEALED[:place]}
        changed |= {SEALED[:place] + c + SEALED[place:] for c in characters}
        changed |= {SEALED[:place] + c + SEALED[place + 1 :] for c in characters}
        for each in changed - {SEALED}:
            assert unseal(KEY, "reasoning", "acme", each) is None, each


@given(st.text() | st.text().map("ant1.".__add__) | st.text("AQaq=-_").map("ant1.".__add__))
def test_rubbish_opens_nothing(rubbish: str) -> None:
    assert unseal(KEY, "reasoning", "acme", rubbish) is None


def test_a_bomb_is_not_unpacked() -> None:
    whole = seal(KEY, "reasoning", "acme", "x" * (sealing.MAX_TEXT - 1))
    assert unseal(KEY, "reasoning", "acme", whole) is not None
    bomb = seal(KEY, "reasoning", "acme", "x" * (2 * sealing.MAX_TEXT))
    assert unseal(KEY, "reasoning", "acme", bomb) is None


def test_keys_are_random() -> None:
    assert make_key() != make_key()
    assert len(make_key()) == KEY_BYTES
