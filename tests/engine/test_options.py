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
        (1000, None, (1000, 1000)),
        (8, None, (8, 512)),
        (None, 10, (10, 10)),
        (None, 2000, (64, 2000)),
        (5, 7, (5, 7)),
    ],
)
def test_what_is_not_given_goes_with_what_is(
    sequences: int | None, tokens: int | None, expected: tuple[int, int]
) -> None:
    options = EngineOptions("tiny", max_sequences=sequences, max_step_tokens=tokens)
    found = batch_size(options, BatchSize(sequences=64, step_tokens=512))
    assert (found.sequences, found.step_tokens) == expected


def test_fewer_tokens_than_sequences() -> None:
    options = EngineOptions("tiny", max_sequences=20, max_step_tokens=10)
    with pytest.raises(ValueError, match="10 tokens a step are too few for 20 sequences"):
        batch_size(options, BatchSize(sequences=64, step_tokens=512))
