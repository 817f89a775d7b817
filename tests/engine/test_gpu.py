"""The GPU's road: on the CPU by reference kernels, and with the real ones where there is a GPU."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flashinfer", exc_type=ImportError)

from engine.backend import make_backend
from engine.batch import Slice
from engine.build import build_core
from engine.config import read_config
from engine.decode_graphs import DecodeGraphs, graph_sizes
from engine.experts import GroupedExperts, Router
from engine.flashinfer_experts import HopperExperts, hopper_experts
from engine.gpu import GpuBackend
from engine.head import WideHead
from engine.loader import load_weights
from engine.memory import WORKING_BYTES
from engine.mxfp4 import StoredExperts, dequantize, quantize
from engine.options import EngineOptions
from engine.penalties import Penalties
from engine.products import PlainExperts
from engine.sampler import Draw, sample
from ipc.messages import GenerationRequest, Sampling
from tests.engine import flashinfer_reference
from tests.engine.builders import make_request
from tests.engine.checkpoints import quantized, random_tensors, save, small_config
from tests.engine.pretend_gpu import DEVICE, pretend_gpu
from tests.engine.test_generation import generate

CPU = torch.device("cpu")
GIB = 2**30
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with 16 GiB, in fp32 so that results can be compared closely."""
    flashinfer_reference.install(monkeypatch)
    monkeypatch.setattr(GpuBackend, "dtype", torch.float32)
    # Of its product there is none on the CPU.
    monkeypatch.setattr(WideHead, "__call__", lambda self, hidden: hidden @ self._weight)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (16 * GIB, 16 * GIB))


def rerun(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """As a graph does: the same work on the same tensors, into the same tensor."""
    result = function()
    return lambda: result.copy_(function())


def backend_of(
    directory: Path,
    capability: tuple[int, int] = (9, 0),
    device: torch.device = CPU,
    **options: Any,
) -> GpuBackend:
    given = EngineOptions("tiny", **options)
    return GpuBackend(read_config(directory), given, device, capability, rerun)


@pytest.fixture(scope="module")
def mxfp4_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts in 4 bits, with sizes that are no multiples of 128, and a head that has a kernel."""
    config = small_config(
        head_dim=64, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": []}
    )
    return save(tmp_path_factory.mktemp("gpu"), config, quantized(random_tensors(config)))


REQUESTS = [
    make_request(1, prompt=[1, 2, 3], max_tokens=20, temperature=0.0),
    make_request(2, prompt=list(range(10, 60)), max_tokens=12, seed=1),
    make_request(3, prompt=[4] * 17, max_tokens=20, seed=1, top_p=0.9, logprobs=2),
]


def on_cpu(directory: Path, requests: list[GenerationRequest]) -> dict[int, list[int]]:
    options = EngineOptions("tiny", device="cpu", dtype="float32", blocks=200, block_size=4)
    return generate(build_core(directory, options), requests)


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize(("capability", "max_sequences"), [((9, 0), 2), ((9, 0), 9), ((8, 0), 3)])
def test_generates_as_the_cpu_does(
    mxfp4_directory: Path,
    capability: tuple[int, int],
    max_sequences: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts, chunks and graphs with and without padding, windows that are left behind."""
    expected = on_cpu(mxfp4_directory, REQUESTS)
    backend = backend_of(
        mxfp4_directory, capability, DEVICE, max_sequences=max_sequences, block_size=4
    )
    assert backend.keeps_mxfp4 == (capability == (9, 0))
    monkeypatch.setattr("engine.build.make_backend", lambda *_: backend)
    options = EngineOptions(
        "tiny", blocks=200, block_size=4, max_sequences=max_sequences, max_step_tokens=16
    )
    with pretend_gpu():
        found = generate(build_core(mxfp4_directory, options), REQUESTS)
    assert found == expected


def test_sampling_on_a_gpu() -> None:
    """The same as on the CPU, in every way there is."""
    penalties = Penalties(Sampling(max_tokens=9, presence_penalty=1, repetition_penalty=1.2), [3])
    penalties.add(7)
    draws = [
        Draw(0.0),
        Draw(1.0, uniform=0.3, penalties=penalties, logprobs=0),
        Draw(1.0, top_p=0.9, uniform=0.5, logprobs=3),
        Draw(0.5, top_k=5, min_p=0.1, bias=((3, 1.0), (5, -2.0)), banned=[4]),
        Draw(0.9, top_p=0.999, min_p=0.001, uniform=0.99),
        Draw(2.0, top_k=500, uniform=0.9),
    ]
    logits = torch.randn(len(draws), 20_000, generator=torch.Generator().manual_seed(1))
    allowed = torch.rand(logits.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    expected = sample(logits.clone(), draws, allowed)
    with pretend_gpu() as device:
        assert sample(logits.to(device), draws, allowed.to(device)) == expected


@pytest.mark.usefixtures("reference")
def test_a_graph_gives_what_a_step_without_one_gives(mxfp4_directory: Path) -> None:
    def hidden(graphs: bool) -> list[Tensor]:
        model = backend_of(mxfp4_directory, block_size=4).load(mxfp4_directory, 40, lambda _: None)
        if not graphs:
            model._graphs = None
        tables = [[[9, 2], [7, 4]], [[1, 5], [3, 8]], [[6, 10], [11, 12]]]
        found = [model.forward([Slice([5, 6, 7], 0, tables[0]), Slice([8], 0, tables[1])])]
        for position in range(3, 8):
            slices = [
                Slice([position], position, tables[0]),
                Slice([9], position - 2, tables[1]),
                Slice([1], position - 3, tables[2]),
            ]
            found.append(model.forward(slices).clone())
        return found

    for one, other in zip(hidden(True), hidden(False), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def stored_experts(experts: int, hidden: int, inner: int) -> StoredExperts:
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return StoredExperts(
        *quantize(random(experts, 2 * inner, hidden)),
        random(experts, 2 * inner),
        *quantize(random(experts, hidden, inner)),
        random(experts, hidden),
    )


def plain_experts(stored: StoredExperts, router: Router) -> GroupedExperts:
    gate_up = dequantize(stored.gate_up_blocks, stored.gate_up_scales, torch.float32)
    halves = torch.cat((gate_up[:, ::2], gate_up[:, 1::2]), dim=1)
    bias = torch.cat((stored.gate_up_bias[:, ::2], stored.gate_up_bias[:, 1::2]), dim=1)
    down = dequantize(stored.down_blocks, stored.down_scales, torch.float32)
    return GroupedExperts(
        router,
        PlainExperts(halves.transpose(1, 2).contiguous(), bias),
        PlainExperts(down.transpose(1, 2).contiguous(), stored.down_bias),
        alpha=1.702,
        limit=7.0,
    )


def random_router(experts: int, hidden: int) -> Router:
    generator = torch.Generator().manual_seed(4)
    return Router(torch.randn(experts, hidden, generator=generator), torch.zeros(experts), kept=2)


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize(("hidden", "inner"), [(128, 128), (64, 96), (160, 256), (288, 32)])
def test_experts_in_4_bits_equal_their_plain_values(hidden: int, inner: int) -> None:
    stored, router = stored_experts(4, hidden, inner), random_router(4, hidden)
    packed = hopper_experts(router, stored, alpha=1.702, limit=7.0, dtype=torch.float32)
    for size in (packed.first.shape[1] // 2, packed.second.shape[1]):
        assert size % 128 == 0
    rows = torch.randn(7, hidden, generator=torch.Generator().manual_seed(5))
    expected = plain_experts(stored, router)(rows)
    assert torch.allclose(packed(rows), expected, rtol=1e-3, atol=1e-2 * expected.std().item())


@pytest.mark.usefixtures("reference")
def test_memory(mxfp4_directory: Path) -> None:
    """Told before loading; the cache gets all the room that weights and work leave."""
    kept, plain = (backend_of(mxfp4_directory, (major, 0)) for major in (9, 8))
    assert kept.loaded_bytes < plain.loaded_bytes
    made: list[int] = []
    kept.load(mxfp4_directory, 10, made.append)
    assert sum(made) == kept.loaded_bytes
    block = 16 * 2 * 2 * 2 * 64 * 4
    room = kept.available_memory() - kept.weight_bytes - WORKING_BYTES
    assert room - block < kept.default_blocks() * block <= room


def test_what_a_gpu_does_not_run_is_refused(mxfp4_directory: Path, checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="float32 is for the CPU"):
        GpuBackend(
            read_config(mxfp4_directory), EngineOptions("tiny", dtype="float32"), CPU, (9, 0), rerun
        )
    with pytest.raises(ValueError, match="head dimension of 32"):
        backend_of(checkpoint)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="finds no CUDA device"):
        make_backend(read_config(checkpoint), EngineOptions("tiny", device="cuda"))


def test_a_gpu_beyond_those_there_are(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="cuda:2: torch finds 2 CUDA devices"):
        make_backend(read_config(checkpoint), EngineOptions("tiny", device="cuda:2"))


@pytest.mark.parametrize("most", [1, 2, 3, 8, 16, 17, 64, 100])
def test_graph_sizes(most: int) -> None:
    """Up to the most, without doubles, and no step is padded to more than twice its size but for
    the next 16."""
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, most)
    for smaller, larger in pairwise(sizes):
        assert larger <= max(2 * smaller, smaller + 16)


class Planned:
    """Attention that only remembers what was planned."""

    def __init__(self) -> None:
        self.slices: Sequence[Slice] = []

    def plan(self, slices: Sequence[Slice]) -> None:
        self.slices = slices

    def attend(self, layer: int, qkv: Tensor, sinks: Tensor) -> Tensor:
        raise NotImplementedError


def test_which_steps_have_a_graph() -> None:
    graphs = DecodeGraphs(
        lambda tokens, _: tokens.unsqueeze(1).float(), lambda _: Planned(), [1, 4], CPU, rerun
    )
    assert graphs.run([Slice([1, 2], 0, [])]) is None
    assert graphs.run([Slice([1], 0, [])] * 5) is None
    found = graphs.run([Slice([token], 0, []) for token in (7, 8, 9)])
    assert found is not None
    assert found.flatten().tolist() == [7, 8, 9]


# --- with the real kernels -----------------------------------------------------------------------


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    yield torch.device("cuda")
    torch.cuda.empty_cache()


@pytest.mark.gpu
@needs_gpu
def test_real_kernels_stay_close_to_the_cpu(mxfp4_directory: Path, cuda: torch.device) -> None:
    """Hidden states of prompts, chunks and graphs in bf16, against fp32 on the CPU."""
    config = read_config(mxfp4_directory)
    options = EngineOptions("tiny", max_sequences=4)
    real = GpuBackend(config, options, cuda).load(mxfp4_directory, 64, lambda _: None)
    exact = make_backend(config, EngineOptions("tiny", device="cpu", dtype="float32")).load(
        mxfp4_directory, 64, lambda _: None
    )
    prompt = [(7 * place) % 290 for place in range(70)]
    tables = [list(range(10)), list(range(10, 20))]
    for first, end in ((0, 40), (40, 67), (67, 68), (68, 69), (69, 70)):
        slices = [Slice(prompt[first:end], first, tables)]
        found = real.logits(real.forward(slices)).cpu()
        expected = exact.logits(exact.forward(slices))
        assert (found - expected).abs().max() < 0.1 * expected.std()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs Hopper",
)
@pytest.mark.parametrize("rows", [1, 16, 300])
def test_real_experts_in_4_bits(cuda: torch.device, rows: int) -> None:
    stored, router = stored_experts(8, 320, 192), random_router(8, 320)
    hidden = torch.randn(rows, 320, generator=torch.Generator().manual_seed(5))
    expected = plain_experts(stored, router)(hidden)
    on_device = StoredExperts(
        *(
            getattr(stored, name).to(cuda)
            for name in ("gate_up_blocks", "gate_up_scales", "gate_up_bias")
        ),
        *(getattr(stored, name).to(cuda) for name in ("down_blocks", "down_scales", "down_bias")),
    )
    moved = Router(router.weight.to(cuda).bfloat16(), router.bias.to(cuda).bfloat16(), 2)
    packed: HopperExperts = hopper_experts(moved, on_device, 1.702, 7.0, torch.bfloat16)
    found = packed(hidden.to(cuda).bfloat16()).float().cpu()
    assert (found - expected).abs().mean() < 0.05 * expected.std()


@pytest.mark.gpu
@needs_gpu
def test_loading_to_a_gpu(checkpoint: Path, cuda: torch.device) -> None:
    config = read_config(checkpoint)
    weights = load_weights(checkpoint, config, torch.bfloat16, torch.bfloat16, lambda _: None, cuda)
    assert weights.embedding.device.type == "cuda"
