"""Hash-coded vocabulary rows."""

import torch

from engine.demo.rows import BITS, FEATURES, describe, expand_rows, features
from ipc.vocabulary import SIZE


def test_forms_of_a_word_share_their_hash_and_differ_in_flags() -> None:
    forms = [b" Paris", b"Paris", b"paris", b"_paris", b" PARIS"]
    described = [describe(form) for form in forms]
    assert len({code for code, _ in described}) == 1
    assert len({flags for _, flags in described}) == len(forms)
    assert describe(b" London")[0] != described[0][0]


def test_bytes_that_are_no_text_keep_apart() -> None:
    assert describe(b"\xe2\x82")[0] != describe(b"\xe2\x83")[0]
    assert describe(b"")[1] == (False,) * 5 + (True,)


def test_features_are_signs_and_flags() -> None:
    found = features(torch.tensor([0, 199_997, SIZE - 1]))
    assert found.shape == (3, FEATURES)
    assert set(found[:, :BITS].flatten().tolist()) == {-1.0, 1.0}
    assert set(found[:, BITS:].flatten().tolist()) <= {0.0, 1.0}
    assert found[:, -1].tolist() == [1.0] * 3


def test_stored_rows_replace_coded_ones() -> None:
    generator = torch.Generator().manual_seed(3)
    projection = torch.randn(FEATURES, 8, generator=generator).bfloat16()
    stored = torch.randn(2, 8, generator=generator).bfloat16()
    ids = torch.tensor([5, 200_002], dtype=torch.int32)
    table = expand_rows(projection, ids, stored)
    assert table.shape == (SIZE, 8)
    assert torch.equal(table[ids.long()], stored)
    coded = features(torch.tensor([6])).double() @ projection.double()
    assert torch.equal(table[6], coded[0].bfloat16())
