"""The model that is trained is the gpt-oss that is served."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from engine.demo import rows
from engine.demo.expand import expand
from engine.demo.model import DemoModel, Rows, Shape, rounded
from engine.demo.train import compact
from engine.mxfp4 import dequantize, quantize

STORED = torch.tensor([11, 220, 200_002, 200_006])


@pytest.fixture(scope="module")
def model() -> DemoModel:
    """A model of random parameters, all of which bfloat16 can hold."""
    torch.manual_seed(5)
    made = DemoModel(Shape(layers=2), STORED)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn_like(parameter) * 0.05
            parameter.copy_((parameter + noise).bfloat16())
    return made


def hidden_states(model: DemoModel, ids: Tensor) -> Tensor:
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    hidden, _ = model(ids, positions, torch.arange(ids.numel()), True)
    return torch.Tensor(hidden)


def test_equals_transformers_on_the_expanded_checkpoint(model: DemoModel, tmp_path: Path) -> None:
    from transformers import GptOssForCausalLM

    expand(save(compact(model)), tmp_path)
    oracle = GptOssForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    ids = torch.randint(0, 199_998, (2, 200), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        # The logits of a few tokens tell: those with a stored row and some with a coded one.
        some = torch.cat((STORED, torch.arange(400, 420)))
        expected = oracle(ids).logits[..., some]
        embedding, unembedding = oracle.model.embed_tokens.weight, oracle.lm_head.weight
        assert torch.allclose(model.embed(some), embedding[some], atol=0.02)
        model.embed.forward = lambda ids: embedding[ids]  # type: ignore[method-assign]
        found = hidden_states(model, ids) @ unembedding[some].T
        del model.embed.forward
    assert torch.allclose(found, expected, atol=2e-3)


def test_padding_changes_nothing(model: DemoModel) -> None:
    ids = torch.randint(0, 199_998, (1, 30), generator=torch.Generator().manual_seed(7))
    padded = torch.cat((ids, torch.zeros(1, 10, dtype=torch.long)), dim=1)
    positions = torch.arange(40)[None]
    with torch.no_grad():
        hidden, _ = model(padded, positions, torch.arange(30), True)
        assert torch.allclose(hidden[:, :30], hidden_states(model, ids), atol=1e-5)


def test_layers_after_a_jump_see_as_far_as_their_window(model: DemoModel) -> None:
    ids = torch.randint(0, 199_998, (1, 8), generator=torch.Generator().manual_seed(8))
    changed = ids.clone()
    changed[0, 0] += 1
    positions = torch.tensor([[0, 500, 501, 502, 503, 504, 505, 506]])
    one_sliding = DemoModel(Shape(layers=2), STORED)
    one_sliding.layers = one_sliding.layers[:1]
    with torch.no_grad():
        first, second = (
            one_sliding(x, positions, torch.arange(8), True)[0] for x in (ids, changed)
        )
        assert torch.allclose(first[:, 1:], second[:, 1:], atol=1e-5)
        first, second = (model(x, positions, torch.arange(8), True)[0] for x in (ids, changed))
        assert not torch.allclose(first[:, 1:], second[:, 1:], atol=1e-3)


def test_untrained_model_already_copies() -> None:
    torch.manual_seed(9)
    ids = torch.randperm(199_998)[:20]
    model = DemoModel(Shape(), ids)
    twice = torch.cat((ids, ids))[None]
    with torch.no_grad():
        guesses = (hidden_states(model, twice)[0, 20:39] @ model.unembed(ids).T).argmax(-1)
    assert (guesses == torch.arange(1, 20)).float().mean() > 0.6


def test_rows_are_coded_ones_plus_corrections() -> None:
    table = Rows(STORED, torch.ones(rows.BITS, 4), torch.ones(rows.FLAGS, 4), torch.ones(4, 4))
    with torch.no_grad():
        ids = torch.tensor([220, 221])
        coded = rows.features(ids) @ table.projection()
        assert torch.equal(table(ids) - coded, torch.tensor([[1.0] * 4, [0.0] * 4]))


def test_rounding_passes_gradients_through() -> None:
    weight = torch.randn(1, 2, 32, generator=torch.Generator().manual_seed(4), requires_grad=True)
    result = rounded(weight)
    assert torch.allclose(result, dequantize(*quantize(weight.detach()), torch.float32), atol=1e-6)
    result.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(weight.grad, torch.ones_like(weight))  # type: ignore[arg-type]
