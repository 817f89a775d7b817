"""What the command line makes of its options: the engine's command."""

import socket

import pytest
from typer.testing import CliRunner

from frontend import cli
from frontend.supervisor import RunSettings, StartError


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """The settings of the runs that were started, none of which runs."""
    started: list[RunSettings] = []

    async def start(settings: RunSettings, model: str) -> None:
        started.append(settings)

    monkeypatch.setattr(cli, "_run", start)
    return started


def serve(*arguments: str) -> tuple[int, str]:
    """Exit status and output of `antiphon serve`."""
    result = CliRunner().invoke(cli.app, ["serve", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def command(run: list[RunSettings], *arguments: str) -> str:
    """The engine's command."""
    status, output = serve(*arguments)
    assert status == 0, output
    return " ".join(run.pop().engine_arguments)


def test_the_built_in_engine(run: list[RunSettings]) -> None:
    assert command(run) == "engine --model demo --name antiphon-demo --device auto --dtype auto"
    options = ("--blocks", "7", "--threads", "2", "--max-sequences", "3", "--max-step-tokens", "9")
    more = ("--max-waiting", "5", "--no-prefix-caching", "--tenant-weight", "a=2")
    rest = ("--device", "cpu", "--latency-factor", "2")
    assert command(run, "dir/m", "--context-length", "64", *options, *more, *rest) == (
        "engine --model dir/m --name m --context-length 64 --device cpu --dtype auto --blocks 7 "
        "--threads 2 --max-sequences 3 --max-step-tokens 9 --max-waiting 5 --latency-factor 2.0 "
        "--no-prefix-caching --tenant-weight=a=2"
    )


def test_vllm(run: list[RunSettings]) -> None:
    options = ("--max-sequences", "3", "--max-step-tokens", "9", "--max-waiting", "5")
    more = ("--no-prefix-caching", "--step-timeout", "60", "--dtype", "bfloat16")
    own = ("--", "--tensor-parallel-size", "2", "--enforce-eager")
    assert command(run, "dir/m", "--engine", "vllm", *options, *more, *own) == (
        "engine.vllm --model dir/m --name m --step-timeout 60.0 --dtype bfloat16 "
        "--max-num-seqs 3 --max-num-batched-tokens 9 --max-waiting 5 --no-enable-prefix-caching "
        "--tensor-parallel-size 2 --enforce-eager"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["m", "--", "--tensor-parallel-size", "2"], "only --engine vllm takes more options"),
        (["m", "typo"], "only --engine vllm takes more options"),
        (["m", "--engine", "vllm", "--blocks", "7"], "--engine vllm has no --blocks"),
        (["m", "--engine", "vllm", "--threads", "7"], "--engine vllm has no --threads"),
        (["m", "--engine", "vllm", "--device", "cpu"], "--engine vllm has no --device"),
        (["m", "--engine", "vllm", "--latency-factor", "0"], "has no --latency-factor"),
        (["m", "--engine", "vllm", "--tenant-weight", "a=2"], "has no --tenant-weight"),
        (["m", "--engine", "other"], "other"),
    ],
)
def test_what_an_engine_does_not_have_is_refused(
    arguments: list[str], said: str, run: list[RunSettings]
) -> None:
    status, output = serve(*arguments)
    assert (status, run) == (2, [])
    assert said in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--engine", "vllm", "--", "--tensor-parallel-size", "2"], "is no model"),
        (["serve", "--engine", "vllm", "--script", __file__], "exclude each other"),
        (["keys", "add", ""], "is no name"),
        (["keys", "add", "a\nb"], "is no name"),
        (["workers", "list", "--url", "banana"], "is no address"),
        (["workers", "list", "--url", "http://"], "is no address"),
    ],
)
def test_what_makes_no_sense(run: list[RunSettings], arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert said in result.output
    assert not run


def test_an_address_that_is_taken() -> None:
    """Another server there would answer for this one, which would say that it is ready."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(StartError, match=r"cannot listen at 127\.0\.0\.1, port"),
    ):
        cli._check_address("127.0.0.1", taken.getsockname()[1])


def test_an_idle_connection_outlasts_a_minute(run: list[RunSettings]) -> None:
    """Load balancers keep theirs for 60 s; who closes first resets what is just being sent."""
    assert serve()[0] == 0
    assert run.pop().frontend.keep_alive_seconds > 60
    assert serve("--keep-alive-seconds", "7")[0] == 0
    assert run.pop().frontend.keep_alive_seconds == 7
