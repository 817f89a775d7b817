"""L1 to L9 for the registry and its parser: the test kit, run on the real ones."""

from postproc_workers.registry import Registry
from postproc_workers.testkit import assert_contract, assert_parser_contract
from tests.postproc_workers.turns import read


def test_l1_to_l9_hold_for_the_registry() -> None:
    assert_contract(Registry, max_examples=300)


def test_l6_holds_for_the_harmony_stream() -> None:
    assert_parser_contract(lambda steps, cut: read(steps, cut=cut))
