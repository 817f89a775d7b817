"""Which exceptions mean that memory has run out."""

import pytest
import torch

from engine.faults import is_out_of_memory


def cpu_error() -> Exception:
    """What torch really raises: more bytes than any machine has."""
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    return raised.value


def test_out_of_memory_by_its_many_names() -> None:
    assert is_out_of_memory(cpu_error())
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))


@pytest.mark.parametrize("error", [ValueError("out of memory"), RuntimeError("shape mismatch")])
def test_other_errors(error: Exception) -> None:
    assert not is_out_of_memory(error)
