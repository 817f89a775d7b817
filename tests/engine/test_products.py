"""Experts' products in every form and order give the same."""

import pytest
import torch
from torch import Tensor

from engine.experts import GroupedExperts, Router
from engine.products import ExpertProducts, PackedExperts, PackedProduct, PlainExperts, can_pack

EXPERTS, WIDTH = 4, 32
bf16 = pytest.mark.skipif(not can_pack(torch.bfloat16), reason="this machine has no bf16 products")


def weights(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(EXPERTS, WIDTH, 2 * WIDTH, generator=generator)
    return matrices.to(dtype), torch.randn(EXPERTS, 2 * WIDTH, generator=generator).to(dtype)


def packed(matrices: Tensor, bias: Tensor) -> PackedExperts:
    pairs = zip(matrices, bias, strict=True)
    return PackedExperts([PackedProduct(matrix.t().contiguous(), own) for matrix, own in pairs])


@pytest.fixture(params=["plain", pytest.param("packed", marks=bf16)])
def products(request: pytest.FixtureRequest) -> ExpertProducts:
    if request.param == "plain":
        return PlainExperts(*weights(torch.float32))
    return packed(*weights(torch.bfloat16))


def test_products(products: ExpertProducts) -> None:
    dtype = torch.float32 if isinstance(products, PlainExperts) else torch.bfloat16
    matrices, bias = (x.float() for x in weights(dtype))
    rows = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    for experts in ([0, 0, 1, 3, 3], [2, 2, 2, 2, 2]):
        expected = torch.stack(
            [r.float() @ matrices[e] + bias[e] for r, e in zip(rows, experts, strict=True)]
        )
        grouped = products.grouped(rows, torch.tensor(experts))
        assert torch.allclose(grouped.float(), expected, rtol=1e-2, atol=0.05)
        assert torch.allclose(products.each(rows, experts).float(), grouped.float(), rtol=1e-2)
    swapped = products.each(rows[[4, 0]], [3, 0])
    assert torch.allclose(
        swapped.float(),
        products.grouped(rows[[0, 4]], torch.tensor([0, 3]))[[1, 0]].float(),
        rtol=1e-2,
    )


def test_one_token_takes_the_same_way_to_the_same_result() -> None:
    matrices, bias = weights(torch.float32)
    generator = torch.Generator().manual_seed(2)
    experts = GroupedExperts(
        Router(torch.randn(EXPERTS, WIDTH, generator=generator), torch.zeros(EXPERTS), kept=2),
        gate_up=PlainExperts(matrices, bias),
        down=PlainExperts(matrices[:, :, :WIDTH], bias[:, :WIDTH]),
        alpha=1.702,
        limit=7.0,
    )
    hidden = torch.randn(3, WIDTH, generator=generator)
    together = experts(hidden)
    for place in range(3):
        alone = experts(hidden[place : place + 1])
        assert torch.allclose(alone[0], together[place], rtol=1e-4, atol=1e-3)
