"""MXFP4: every code, every scale, and quantisation to the nearest value."""

import pytest
import torch
from torch import Tensor

from engine.mxfp4 import dequantize, quantize

MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def spelled_out(blocks: Tensor, scales: Tensor) -> Tensor:
    """The weights as the specification words them, one nibble after the other, in float64."""
    rows = []
    for block, scale in zip(blocks.flatten(0, -2).tolist(), scales.flatten().tolist(), strict=True):
        for byte in block:
            for nibble in (byte & 15, byte >> 4):
                sign = -1.0 if nibble & 8 else 1.0
                rows.append(sign * MAGNITUDES[nibble & 7] * 2.0 ** (scale - 127))
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_byte_under_every_scale(dtype: torch.dtype) -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 255, 1, 1)
    scales = torch.arange(255, dtype=torch.uint8).view(1, 255, 1).repeat(1, 1, 16)
    found = dequantize(blocks, scales, dtype)
    assert found.shape == (1, 255, 512)
    expected = spelled_out(blocks, scales).to(dtype).view_as(found)
    assert torch.equal(found.double(), expected.double())
    assert torch.equal(found.signbit(), expected.signbit())


def test_scale_255_is_not_a_number() -> None:
    blocks = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    assert dequantize(blocks, torch.full((1, 1, 1), 255, dtype=torch.uint8)).isnan().all()


def test_quantizes_to_the_nearest_value() -> None:
    weight = torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(1)) * 0.02
    blocks, scales = quantize(weight)
    assert blocks.shape == (3, 8, 2, 16)
    assert blocks.dtype == scales.dtype == torch.uint8
    values = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)])
    steps = torch.ldexp(torch.ones(3, 8, 2), scales.int() - 127)
    errors = (weight.view(3, 8, 2, 32, 1) - steps[..., None, None] * values).abs().amin(-1)
    found = dequantize(blocks, scales, torch.float32)
    assert torch.equal((found - weight).abs(), errors.view(3, 8, 64))


def test_largest_magnitude_sets_the_scale() -> None:
    largest = torch.tensor([4.0, 6.0, 7.9999995, 8.0, 2**-100, 0.75])
    weight = torch.zeros(1, 6, 32)
    weight[0, :, 5] = largest
    _, scales = quantize(weight)
    assert scales.flatten().tolist() == [127, 127, 127, 128, 25, 124]


def test_what_was_quantized_stays() -> None:
    weight = torch.randn(2, 4, 96, generator=torch.Generator().manual_seed(2))
    blocks, scales = quantize(weight)
    again = quantize(dequantize(blocks, scales))
    assert torch.equal(again[0], blocks)
    assert torch.equal(again[1], scales)


def test_zero_has_the_smallest_scale() -> None:
    blocks, scales = quantize(torch.zeros(1, 1, 32))
    assert blocks.count_nonzero() == scales.count_nonzero() == 0
    assert not dequantize(blocks, scales).any()


def test_a_block_must_be_full() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        quantize(torch.zeros(1, 4, 40))
