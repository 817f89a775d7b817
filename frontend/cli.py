"""The command line: `antiphon serve`, `antiphon keys add`."""

import asyncio
import importlib.util
import logging
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.panel import Panel
from rich.table import Table

from frontend.keys import KeyFileError, append_key, make_key
from frontend.settings import (
    DEFAULT_KEEP_ALIVE_SECONDS,
    DEFAULT_MAX_STREAMS,
    DEFAULT_STORE_COUNT,
    DEFAULT_STORE_SECONDS,
    FrontendSettings,
)
from frontend.state.seal_key import SEAL_KEY_FILE
from frontend.store.database import StoreError, checked_url, data_directory, default_url
from frontend.supervisor import RunSettings, StartError, Supervisor

app = typer.Typer(
    name="antiphon",
    help="A server for gpt-oss (Harmony) models over the OpenAI API.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
keys = typer.Typer(help="API keys.", no_args_is_help=True)
app.add_typer(keys, name="keys")
_console = Console(stderr=True)

workers = typer.Typer(help="Post-processing workers of a running server.", no_args_is_help=True)
app.add_typer(workers, name="workers")

DEMO = "demo"
NO_STORE = "none"
KEY_FILE = Path("api-keys.jsonl")


def _print_version(asked: bool) -> None:
    if asked:
        print(metadata.version("antiphon"))  # noqa: T201
        raise typer.Exit


@app.callback()
def antiphon(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """A server for gpt-oss (Harmony) models over the OpenAI API."""


class LogLevel(StrEnum):
    """Levels of the log on standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Transport(StrEnum):
    """How the processes of a run are linked."""

    IPC = "ipc"
    TCP = "tcp"


class Engine(StrEnum):
    """What runs the model."""

    TORCH = "torch"
    VLLM = "vllm"


class Switch(StrEnum):
    """Whether something is done."""

    ON = "on"
    OFF = "off"


class ReasoningField(StrEnum):
    """Where Chat Completions tells the reasoning."""

    REASONING = "reasoning"
    REASONING_CONTENT = "reasoning_content"


class DType(StrEnum):
    """Arithmetic of the model."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


def default_workers(cpus: int) -> int:
    """One worker handles over a million tokens a second: few are enough, and leave the cores to
    the engine."""
    return min(4, max(1, cpus // 4))


def _check_weights(weights: list[str] | None) -> list[str]:
    for weight in weights or ():
        if not re.fullmatch(r".+=\d*\.?\d+", weight) or float(weight.rpartition("=")[2]) <= 0:
            raise typer.BadParameter(f"{weight!r} is not NAME=WEIGHT with a weight above 0")
    return list(weights or ())


def _check_factor(factor: float | None) -> float | None:
    if factor and not 1 <= factor < float("inf"):
        raise typer.BadParameter(f"{factor} is neither 0 nor 1 or more")
    return factor


def _check_store(store: str | None) -> str | None:
    if store is not None and store != NO_STORE:
        try:
            checked_url(store)
        except StoreError as error:
            raise typer.BadParameter(str(error)) from error
    return store


def _check_device(device: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise typer.BadParameter(f"{device!r} is none of auto, cpu, cuda and cuda:N")
    return device


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The options that are the engine's; None leaves the choice to it."""

    device: str = "auto"
    dtype: DType = DType.AUTO
    threads: int | None = None
    blocks: int | None = None
    max_sequences: int | None = None
    max_step_tokens: int | None = None
    max_waiting: int | None = None
    latency_factor: float | None = None
    prefix_caching: bool = True
    tenant_weight: list[str] = field(default_factory=list)


def _torch_options(given: EngineSettings, arguments: list[str]) -> list[str]:
    """The options of `python -m engine`. Raises BadParameter for arguments that are vLLM's."""
    if arguments:
        raise typer.BadParameter(f"{' '.join(arguments)}: only --engine vllm takes more options")
    options = ["--device", given.device, "--dtype", given.dtype.value]
    options += _given("--blocks", given.blocks) + _given("--threads", given.threads)
    options += _given("--max-sequences", given.max_sequences)
    options += _given("--max-step-tokens", given.max_step_tokens)
    options += _given("--max-waiting", given.max_waiting)
    options += _given("--latency-factor", given.latency_factor)
    options += [] if given.prefix_caching else ["--no-prefix-caching"]
    return options + [f"--tenant-weight={weight}" for weight in given.tenant_weight]


def _vllm_options(given: EngineSettings, arguments: list[str]) -> list[str]:
    """The options of `python -m engine.vllm`: what vLLM has a name for, then its own, which win.
    Raises BadParameter for what it cannot do."""
    absent = {
        "--device": given.device != "auto",
        "--blocks": given.blocks,
        "--threads": given.threads,
        "--latency-factor": given.latency_factor is not None,
        "--tenant-weight": given.tenant_weight,
    }
    for option in [option for option, value in absent.items() if value]:
        raise typer.BadParameter(f"--engine vllm has no {option}")
    options = ["--dtype", given.dtype.value]
    options += _given("--max-num-seqs", given.max_sequences)
    options += _given("--max-num-batched-tokens", given.max_step_tokens)
    options += _given("--max-waiting", given.max_waiting)
    options += [] if given.prefix_caching else ["--no-enable-prefix-caching"]
    return options + arguments


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face gpt-oss directory, or [bold]demo[/]: the built-in one."
        ),
    ] = DEMO,
    engine_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- VLLM_OPTIONS]",
            help="Options of vLLM's own, behind [bold]--[/], for [bold]--engine vllm[/]: "
            "[bold]-- --tensor-parallel-size 2[/].",
        ),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="What runs the model: Antiphon's own engine, or vLLM, which has to be installed."
        ),
    ] = Engine.TORCH,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
    num_postprocess_workers: Annotated[
        int | None,
        typer.Option(
            "--num-postprocess-workers",
            "--num_postprocess_workers",
            help="Post-processing worker processes; 0 runs them inside the frontend. "
            "[dim]Default: one for each 4 cores, 1 to 4.[/]",
            min=0,
            max=64,
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(help="The model's name in the API. [dim]Default: the directory's.[/]"),
    ] = None,
    context_length: Annotated[
        int | None,
        typer.Option(help="Most tokens of prompt and output. [dim]Default: the model's.[/]", min=2),
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(help="KV cache blocks of 16 tokens. [dim]Default: by memory.[/]", min=1),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            callback=_check_device,
            help="cpu, cuda or cuda:N. [dim]auto: a GPU if there is one.[/]",
        ),
    ] = "auto",
    dtype: Annotated[DType, typer.Option(help="Arithmetic of the model.")] = DType.AUTO,
    threads: Annotated[
        int | None, typer.Option(help="Threads of the engine. [dim]Default: by size.[/]", min=1)
    ] = None,
    max_sequences: Annotated[
        int | None,
        typer.Option(
            help="Sequences that run at once. [dim]Default: 64 on a CPU, 256 on a GPU.[/]", min=1
        ),
    ] = None,
    max_step_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens that the engine computes in one step, at least one a sequence. "
            "[dim]Default: 512 on a CPU, 4096 on a GPU.[/]",
            min=1,
        ),
    ] = None,
    max_waiting: Annotated[
        int | None,
        typer.Option(
            help="Requests that wait for the engine before more are turned away. "
            "[dim]Default: 4096.[/]",
            min=1,
        ),
    ] = None,
    prefix_caching: Annotated[
        bool,
        typer.Option(help="Keep the KV cache of prompts for those that begin in the same way."),
    ] = True,
    tenant_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WEIGHT",
            callback=_check_weights,
            help="A tenant's share of the engine against the others', which have 1. Repeatable.",
        ),
    ] = None,
    latency_factor: Annotated[
        float | None,
        typer.Option(
            callback=_check_factor,
            help="How many times as long as with its own work alone a step of the tenant with the "
            "least work may take. 0: no limit. [dim]Default: 2.[/]",
        ),
    ] = None,
    step_timeout: Annotated[
        float | None,
        typer.Option(
            help="Longest in seconds that one step of the engine may take; then a new engine is "
            "started. 0: no limit. [dim]Default: 120.[/]",
            min=0,
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="File of API keys ([bold]antiphon keys add[/] makes it). "
            "[dim]Default: no authentication.[/]",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    admin_keys: Annotated[
        Path | None,
        typer.Option(
            help="File of keys for /admin, made by [bold]antiphon keys add[/]. [dim]Default: on "
            "a loopback address no key is needed, elsewhere /admin is off.[/]",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    max_streams: Annotated[
        int, typer.Option(help="Most requests at once; more are answered 503.", min=1)
    ] = DEFAULT_MAX_STREAMS,
    max_stream_seconds: Annotated[
        float | None,
        typer.Option(
            help="Longest that a request may take; then it ends with an error. "
            "[dim]Default: no limit.[/]",
            min=1,
        ),
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(help="How long a shutdown waits for running requests.", min=0)
    ] = 30.0,
    keep_alive_seconds: Annotated[
        int, typer.Option(help="How long an idle connection is kept open.", min=1)
    ] = DEFAULT_KEEP_ALIVE_SECONDS,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            callback=_check_store,
            help="Where responses and conversations are kept: sqlite:///PATH, "
            "postgresql://USER@HOST/NAME, or [bold]none[/]. [dim]Default: a SQLite file in the "
            "data directory.[/]",
        ),
    ] = None,
    store_days: Annotated[
        float, typer.Option(help="How long a response is kept, in days.", min=0)
    ] = DEFAULT_STORE_SECONDS / 24 / 3600,
    store_count: Annotated[
        int, typer.Option(help="How many responses are kept.", min=1)
    ] = DEFAULT_STORE_COUNT,
    seal_key: Annotated[
        Path | None,
        typer.Option(
            help="File of the key that reasoning is encrypted with for clients that keep it; made "
            "if it is not there. [dim]Default: in the data directory.[/]",
            dir_okay=False,
        ),
    ] = None,
    stream_error_event: Annotated[
        Switch,
        typer.Option(
            help="Whether a Responses stream that fails has an [bold]error[/] event before "
            "[bold]response.failed[/]; some clients cannot read it."
        ),
    ] = Switch.ON,
    reasoning_field: Annotated[
        ReasoningField, typer.Option(help="Member of Chat's messages that has the reasoning.")
    ] = ReasoningField.REASONING,
    ipc: Annotated[Transport, typer.Option(help="How the processes are linked.")] = Transport.IPC,
    script: Annotated[
        Path | None,
        typer.Option(
            help="Replay this file of token traces instead of running a model (for tests and "
            "benchmarks).",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="Log on standard error.")] = LogLevel.WARNING,
) -> None:
    """Serve a model over the OpenAI API."""
    if model.startswith("-"):
        # All behind `--` is arguments: the first of them would be the model.
        raise typer.BadParameter(f"{model} is no model: give one before -- and vLLM's options")
    if script is not None and engine is Engine.VLLM:
        raise typer.BadParameter("--script and --engine vllm exclude each other")
    name = served_model_name or ("antiphon-demo" if model == DEMO else Path(model).resolve().name)
    command = (
        ["engine.scripted", "--scripts", str(script)]
        if script is not None
        else ["engine.vllm" if engine is Engine.VLLM else "engine", "--model", model]
    )
    command += ["--name", name, *_given("--context-length", context_length)]
    command += _given("--step-timeout", step_timeout)
    if script is None:
        given = EngineSettings(
            device=device,
            dtype=dtype,
            threads=threads,
            blocks=blocks,
            max_sequences=max_sequences,
            max_step_tokens=max_step_tokens,
            max_waiting=max_waiting,
            latency_factor=latency_factor,
            prefix_caching=prefix_caching,
            tenant_weight=tenant_weight or [],
        )
        arguments = engine_arguments or []
        command += (
            _vllm_options(given, arguments)
            if engine is Engine.VLLM
            else _torch_options(given, arguments)
        )
    workers = num_postprocess_workers
    frontend = FrontendSettings(
        host=host,
        port=port,
        api_keys=str(api_keys) if api_keys else None,
        admin_keys=str(admin_keys) if admin_keys else None,
        max_streams=max_streams,
        max_stream_seconds=max_stream_seconds,
        drain_seconds=drain_seconds,
        keep_alive_seconds=keep_alive_seconds,
        store=None if store == NO_STORE else store or default_url(),
        store_seconds=store_days * 24 * 3600,
        store_count=store_count,
        seal_key=str(seal_key or data_directory() / SEAL_KEY_FILE),
        stream_error_event=stream_error_event is Switch.ON,
        reasoning_member=reasoning_field.value,
        log_level=log_level.value,
    )
    settings = RunSettings(
        engine_arguments=tuple(command),
        workers=default_workers(os.cpu_count() or 1) if workers is None else workers,
        frontend=frontend,
        tcp=ipc is Transport.TCP,
    )
    logging.basicConfig(
        level=log_level.value.upper(),
        format="%(message)s",
        handlers=[RichHandler(console=_console, show_path=False)],
    )
    try:
        asyncio.run(_run(settings, name))
    except StartError as error:
        _console.print(f"[bold red]Error:[/] {error}")
        raise typer.Exit(1) from error


@app.command()
def simulate(
    seeds: Annotated[int, typer.Option(help="How many runs.", min=1)] = 100,
    first: Annotated[int, typer.Option(help="The first run's seed.", min=0)] = 0,
) -> None:
    """Run the whole system on a virtual clock, with faults, and check its invariants.

    Only in a checkout of the source: the simulation belongs to the tests.
    """
    if importlib.util.find_spec("tests") is None or not importlib.util.find_spec(
        "tests.simulation"
    ):
        _console.print("[bold red]Error:[/] the simulation is part of the source's tests.")
        raise typer.Exit(1)
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds)]
    raise typer.Exit(subprocess.call([*command, "--first", str(first)]))  # noqa: S603


@keys.command("add")
def add_key(
    tenant: Annotated[str, typer.Argument(help="Whose key it is.")],
    file: Annotated[Path, typer.Option(help="File to add the key's hash to.")] = Path(
        "api-keys.jsonl"
    ),
) -> None:
    """Make an API key for a tenant; it is printed once and kept only as a hash."""
    if not tenant.isprintable() or not tenant.strip():
        raise typer.BadParameter(f"{tenant!r} is no name", param_hint="TENANT")
    plain, record = make_key(tenant, int(time.time()))
    try:
        append_key(file, record)
    except (KeyFileError, OSError) as error:
        _console.print(f"[bold red]Error:[/] {error}")
        raise typer.Exit(1) from error
    print(plain)  # noqa: T201


Url = Annotated[str, typer.Option(help="The server's address.")]
AdminKey = Annotated[
    str | None,
    typer.Option(help="An admin key, if the server wants one.", envvar="ANTIPHON_ADMIN_KEY"),
]
LOCAL = "http://127.0.0.1:8000"


@workers.command("list")
def list_workers(url: Url = LOCAL, admin_key: AdminKey = None) -> None:
    """Show the workers and how many streams each has."""
    _show_workers(url, admin_key, None)


@workers.command("set")
def set_workers(
    count: Annotated[int, typer.Argument(help="How many there are to be.", min=1, max=64)],
    url: Url = LOCAL,
    admin_key: AdminKey = None,
) -> None:
    """Start or end workers while the server serves; no stream is lost."""
    _show_workers(url, admin_key, {"workers": count})


@workers.command("drain")
def drain_worker(
    worker: Annotated[int, typer.Argument(help="The worker's number.", min=0)],
    url: Url = LOCAL,
    admin_key: AdminKey = None,
) -> None:
    """Move a worker's streams to the others and end it."""
    _show_workers(url, admin_key, {"drain": worker})


def _show_workers(url: str, admin_key: str | None, body: dict[str, int] | None) -> None:
    if not re.match(r"https?://[^/]", url):
        raise typer.BadParameter(f"{url!r} is no address like {LOCAL}", param_hint="--url")
    address = f"{url.rstrip('/')}/admin/postprocess-workers"
    asked = urllib.request.Request(address)  # noqa: S310  the operator gave the address
    if admin_key is not None:
        asked.add_header("authorization", f"Bearer {admin_key}")
    if body is not None:
        asked.data = msgspec.json.encode(body)
    try:
        with urllib.request.urlopen(asked) as reply:  # noqa: S310
            told = msgspec.json.decode(reply.read())
    except urllib.error.HTTPError as error:
        reason = msgspec.json.decode(error.read())["error"]["message"]
        _console.print(f"[bold red]Error:[/] {reason}")
        raise typer.Exit(1) from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        _console.print(f"[bold red]Error:[/] nothing answers at {url}: {reason}")
        raise typer.Exit(1) from error
    table = Table("worker", "up", "streams")
    for worker in told["workers"]:
        table.add_row(*(str(worker[column]) for column in ("worker", "up", "streams")))
    Console().print(table)


def _given(option: str, value: float | None) -> list[str]:
    return [] if value is None else [option, str(value)]


def _check_address(host: str, port: int) -> None:
    """Raise StartError if another server has the address: its answers would pass for ours."""
    # Here, as these imports take a while.
    from frontend.server import ListenError, listen

    try:
        listen(host, port).close()
    except ListenError as error:
        raise StartError(str(error)) from error


async def _run(settings: RunSettings, model: str) -> None:
    _check_address(settings.frontend.host, settings.frontend.port)
    supervisor = Supervisor(settings)
    _console.print(f"Starting Antiphon with {settings.workers} post-processing worker(s) ...")
    announcement = asyncio.create_task(_announce(settings, model))
    try:
        await supervisor.run()
    finally:
        announcement.cancel()


async def _announce(settings: RunSettings, model: str) -> None:
    """Say what to try, once requests can be served."""
    while not await _healthy(settings):
        await asyncio.sleep(0.1)
    host = (
        f"[{settings.frontend.host}]" if ":" in settings.frontend.host else settings.frontend.host
    )
    base = f"http://{host}:{settings.frontend.port}"
    _console.print(
        Panel(
            f"Serving [bold]{model}[/] at [bold]{base}/v1[/] (stop with Ctrl-C). Try:",
            title="Antiphon is ready",
            expand=False,
        ),
        highlight=False,
    )
    authorization = ' -H "Authorization: Bearer $KEY"' if settings.frontend.api_keys else ""
    body = f'{{"model": "{model}", "input": "What is the capital of France?", "stream": true}}'
    # Not in the panel, and not wrapped: these lines are to be copied.
    for line in (
        f"curl -N {base}/v1/responses{authorization} -H 'Content-Type: application/json' \\",
        f"    -d '{body}'",
        f"curl {base}/metrics",
    ):
        _console.print(line, soft_wrap=True, highlight=False, markup=False)


async def _healthy(settings: RunSettings) -> bool:
    try:
        reader, writer = await asyncio.open_connection(
            settings.frontend.host, settings.frontend.port
        )
        with closing(writer):
            writer.write(b"GET /health HTTP/1.1\r\nHost: antiphon\r\nConnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
    except OSError:
        return False


def main() -> None:
    """Entry point of the `antiphon` command."""
    app()


if __name__ == "__main__":
    main()
