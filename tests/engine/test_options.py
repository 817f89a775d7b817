"""The engine's command line."""

import pytest

from engine.__main__ import parse
from engine.options import BatchSize, EngineOptions, batch_size


def test_shares_and_caching() -> None:
    options = parse(["--listen", "ipc:///x", "--tenant-weight", "a=2", "--tenant-weight=b=c=0.5"])
    assert dict(options.tenant_weight) == {"a": 2.0, "b=c": 0.5}
    assert options.prefix_caching
    assert not parse(["--listen", "ipc:///x", "--no-prefix-caching"]).prefix_caching


@pytest.mark.parametrize("weight", ["a", "=1", "a=0", "a=-1", "a=inf", "a=nan", "a=much"])
def test_weights_that_are_none(weight: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--listen", "ipc:///x", "--tenant-weight", weight])
    assert "tenant-weight" in capsys.readouterr().err


@pytest.mark.parametrize("factor", ["-1", "0.5", "inf", "nan", "x"])
def test_factors_that_are_none(factor: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--listen", "ipc:///x", "--latency-factor", factor])
    assert "latency-factor" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "mps"])
def test_devices_that_are_none(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--listen", "ipc:///x", "--device", device])
    assert "--device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sequences", "tokens", "expected"),
    [
        (None, None, (64, 512)),
        (700, None, (700, 700)),
        (None, 32, (32, 32)),
        (None, 1000, (64, 1000)),
        (8, 16, (8, 16)),
    ],
)
def test_one_half_of_the_batch_size_gives_way_to_the_other(
    sequences: int | None, tokens: int | None, expected: tuple[int, int]
) -> None:
    options = EngineOptions("tiny", max_sequences=sequences, max_step_tokens=tokens)
    assert batch_size(options, BatchSize(64, 512)) == BatchSize(*expected)
