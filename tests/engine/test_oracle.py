"""The forward pass against transformers' GptOssForCausalLM, in fp32."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor
from transformers import GptOssForCausalLM

from engine import head, torch_attention
from engine.attention import AttentionBackend
from engine.batch import Slice
from engine.config import GptOssConfig, read_config
from engine.head import ExactHead, Head, RefinedHead
from engine.loader import load_weights
from engine.model import Model
from engine.torch_attention import TorchAttention
from tests.engine.checkpoints import VOCABULARY, WINDOW

BLOCK = 4
BLOCKS = 256
TOLERANCE = 1e-4

Oracle = Callable[[Sequence[int]], Tensor]
"""All logits [T, V] of a prompt."""


def load_oracle(directory: Path) -> Oracle:
    model = GptOssForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )

    @torch.inference_mode()
    def logits(tokens: Sequence[int]) -> Tensor:
        return cast(Tensor, model(torch.tensor([list(tokens)])).logits[0])

    return logits


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> Oracle:
    return load_oracle(checkpoint)


@pytest.fixture(params=["torch", "flashinfer"])
def model(
    checkpoint: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Model:
    """With each attention; flashinfer's kernels by their reference."""
    if request.param == "torch":
        return load_model(checkpoint)
    reference = pytest.importorskip("tests.engine.flashinfer_reference", exc_type=ImportError)
    reference.install(monkeypatch)
    return load_model(checkpoint, make_attention=flashinfer_attention)


def flashinfer_attention(config: GptOssConfig, dtype: torch.dtype) -> AttentionBackend:
    from engine.flashinfer_attention import FlashinferAttention

    return FlashinferAttention(config, 2 * BLOCKS, BLOCK, dtype, torch.device("cpu"))


def torch_only(config: GptOssConfig, dtype: torch.dtype) -> AttentionBackend:
    return TorchAttention(config, 2 * BLOCKS, BLOCK, dtype)


def load_model(
    directory: Path,
    dtype: torch.dtype = torch.float32,
    make_head: Callable[[Tensor], Head] = ExactHead,
    make_attention: Callable[[GptOssConfig, torch.dtype], AttentionBackend] = torch_only,
) -> Model:
    config = read_config(directory)
    weights = load_weights(directory, config, dtype)
    head = make_head(weights.unembedding)
    return Model(weights, head, make_attention(config, dtype), config.rms_norm_eps)


def forward(model: Model, slices: Sequence[Slice], wanted: Sequence[bool] | None = None) -> Tensor:
    return model.logits(model.forward(slices, wanted))


def tokens(count: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (count,), generator=generator).tolist()


def contiguous(first: int) -> list[int]:
    return list(range(first, first + 60))


def both(table: list[int]) -> list[list[int]]:
    """The tables of full and sliding layers, which share memory but no block."""
    return [table, [block + BLOCKS for block in table]]


def scattered(first: int) -> list[int]:
    return list(range(first, first + 180, 3))


def largest_difference(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return (found - expected).abs().max().item()


@pytest.mark.parametrize("count", [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW, 101])
def test_prompt_in_one_chunk(model: Model, oracle: Oracle, count: int) -> None:
    prompt = tokens(count)
    found = forward(model, [Slice(prompt, 0, both(contiguous(0)))])
    assert largest_difference(found, oracle(prompt)[-1:]) < TOLERANCE


@pytest.mark.parametrize("table", [contiguous(5), scattered(5)], ids=["contiguous", "scattered"])
@pytest.mark.parametrize("sizes", [[5, 1, 40, 3, 20], [1] * 30, [WINDOW, WINDOW, 2 * WINDOW, 1]])
def test_prompt_in_chunks(model: Model, oracle: Oracle, sizes: list[int], table: list[int]) -> None:
    prompt = tokens(sum(sizes))
    expected = oracle(prompt)
    position = 0
    for size in sizes:
        end = position + size
        found = forward(model, [Slice(prompt[position:end], position, both(table))])
        assert largest_difference(found, expected[end - 1 : end]) < TOLERANCE
        position = end


@pytest.mark.parametrize("gather_size", [0, 1500, torch_attention.GATHER_SIZE])
def test_decode_beside_prefill(
    model: Model,
    oracle: Oracle,
    gather_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sequences of several lengths decode in one batch while another is still prefilled."""
    monkeypatch.setattr(torch_attention, "GATHER_SIZE", gather_size)
    prompts = [tokens(count, seed=count) for count in (40, 9, 60, 3, 24)]
    starts = [36, 5, 56, 0, 20]
    tables = [contiguous(0), contiguous(60), scattered(120), scattered(121), contiguous(190)]
    expected = [oracle(prompt) for prompt in prompts]
    for prompt, start, table in zip(prompts, starts, tables, strict=True):
        if start:
            model.forward([Slice(prompt[:start], 0, both(table))])
    for offset in range(4):
        batch, places = [], []
        for index, (prompt, start, table) in enumerate(zip(prompts, starts, tables, strict=True)):
            # The fourth sequence starts late, with a chunk of three tokens.
            first, end = (0, 3) if index == 3 else (start + offset, start + offset + 1)
            if index != 3 or offset == 2:
                batch.append(Slice(prompt[first:end], first, both(table)))
                places.append((index, end - 1))
        found = forward(model, batch)
        wanted = torch.stack([expected[index][place] for index, place in places])
        assert largest_difference(found, wanted) < TOLERANCE


def test_long_runs_are_read_in_place(
    model: Model, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two long runs are two views, merged by their log-sum-exp."""
    monkeypatch.setattr(torch_attention, "SHORT_RUN", 1)
    prompt = tokens(75)
    table = [*range(30, 40), *range(10, 20)]
    model.forward([Slice(prompt[:70], 0, both(table))])
    found = forward(model, [Slice(prompt[70:74], 70, both(table))])
    expected = oracle(prompt)
    assert largest_difference(found, expected[73:74]) < TOLERANCE
    found = forward(model, [Slice(prompt[74:], 74, both(table))])
    assert largest_difference(found, expected[74:75]) < TOLERANCE


def test_only_wanted_logits_in_the_order_of_the_slices(model: Model, oracle: Oracle) -> None:
    long, short, other = tokens(12), tokens(1, seed=2), tokens(5, seed=3)
    batch = [
        Slice(long, 0, both(contiguous(0))),
        Slice(short, 0, both(contiguous(60))),
        Slice(other, 0, both(contiguous(120))),
    ]
    found = forward(model, batch, wanted=[True, True, False])
    expected = torch.stack([oracle(long)[-1], oracle(short)[-1]])
    assert largest_difference(found, expected) < TOLERANCE


def test_mxfp4_shards_in_the_earlier_layout(mxfp4_checkpoint: Path) -> None:
    prompt = tokens(30)
    found = forward(load_model(mxfp4_checkpoint), [Slice(prompt, 0, both(contiguous(0)))])
    assert largest_difference(found, load_oracle(mxfp4_checkpoint)(prompt)[-1:]) < TOLERANCE


def test_bf16_stays_close(checkpoint: Path, oracle: Oracle) -> None:
    """bf16 keeps 8 bits: logits of deviation about 1 are off by a few hundredths."""
    prompt = tokens(30)
    found = forward(
        load_model(checkpoint, torch.bfloat16, RefinedHead), [Slice(prompt, 0, both(contiguous(0)))]
    )
    expected = oracle(prompt)[-1:]
    assert largest_difference(found, expected) < 0.1 * expected.std().item()


@pytest.mark.parametrize("pack", [False, True])
def test_refined_logits(
    mxfp4_checkpoint: Path, pack: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The highest logits are exact, the others as near as bf16 has them."""
    monkeypatch.setattr(head, "PACK", pack)
    prompt = tokens(30)
    expected = load_oracle(mxfp4_checkpoint)(prompt)[-1:]
    model = load_model(mxfp4_checkpoint, make_head=RefinedHead)
    found = forward(model, [Slice(prompt, 0, both(contiguous(0)))])
    assert largest_difference(found, expected) < 0.02 * expected.std().item()
    best = expected.topk(head.REFINED // 2).indices
    assert largest_difference(found.gather(1, best), expected.gather(1, best)) < TOLERANCE
