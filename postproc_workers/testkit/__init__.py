"""Property tests of the stream lifecycle, for this project's registry and for others.

`assert_contract(make_registry)` runs any messages in any order through a registry, beside a
reference model, and checks invariants L1 to L9 at every step; `assert_parser_contract(parse)`
checks that cuts change nothing. docs/testkit.md shows both at work on a worker of your own. Needs
hypothesis (the extra `testkit`).
"""

from postproc_workers.testkit.contracts import (
    assert_bounded,
    assert_contract,
    assert_parser_contract,
)
from postproc_workers.testkit.machine import (
    RegistryFactory,
    RegistryMachine,
    RegistryUnderTest,
    machine_for,
)
from postproc_workers.testkit.model import RegistryModel, ScriptedProcessor
from postproc_workers.testkit.strategies import soup, steps, texts, turns

__all__ = [
    "RegistryFactory",
    "RegistryMachine",
    "RegistryModel",
    "RegistryUnderTest",
    "ScriptedProcessor",
    "assert_bounded",
    "assert_contract",
    "assert_parser_contract",
    "machine_for",
    "soup",
    "steps",
    "texts",
    "turns",
]
