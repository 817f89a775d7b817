"""The engine process: `python -m engine --listen ADDRESS --model demo|DIRECTORY`."""

import argparse
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from engine.executor import add_engine_options, serve
from engine.fair_steps import LATENCY_FACTOR
from ipc.process import EXIT_CONFIGURATION, log_to_standard_error
from ipc.security import SecurityError

log = logging.getLogger(__name__)

DEMO = "demo"
"""Names the built-in model."""
DEMO_NAME = "antiphon-demo"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process."""
    options = parse(arguments)
    log_to_standard_error("engine", options.log_level)
    # Idle OpenMP threads otherwise spin, on cores that the other processes need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # After the options and the environment: importing torch takes seconds and reads them.
    from engine.build import build_core
    from engine.config import CheckpointError
    from engine.options import EngineOptions

    demo = options.model == DEMO
    try:
        directory = _demo_directory() if demo else Path(options.model)
        core = build_core(
            directory,
            EngineOptions(
                name=options.name or (DEMO_NAME if demo else directory.resolve().name),
                device=options.device,
                dtype=options.dtype,
                threads=options.threads,
                context_length=options.context_length,
                blocks=options.blocks,
                block_size=options.block_size,
                max_sequences=options.max_sequences,
                max_step_tokens=options.max_step_tokens,
                max_waiting=options.max_waiting,
                prefix_caching=options.prefix_caching,
                tenant_weights=dict(options.tenant_weight),
                latency_factor=options.latency_factor,
            ),
        )
    except (CheckpointError, ValueError) as error:
        _give_up(error)
    try:
        serve(core, options)
    except SecurityError as error:
        _give_up(error)


def _demo_directory() -> Path:
    from engine.config import CheckpointError
    from engine.demo.expand import DemoError, demo_checkpoint

    try:
        return demo_checkpoint()
    except DemoError as error:
        raise CheckpointError(str(error)) from error


def _give_up(error: Exception) -> NoReturn:
    log.critical("%s", error)
    sys.exit(EXIT_CONFIGURATION)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the process; exits with a usage message for those that make no sense."""
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    parser.add_argument("--model", default=DEMO, help="`demo` or a Hugging Face directory")
    parser.add_argument("--name", help="what clients call the model; default: its directory's name")
    parser.add_argument(
        "--device",
        type=_device,
        default="auto",
        help="auto, cpu, cuda or cuda:N (%(default)s: a GPU if there is one)",
    )
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--threads", type=_positive, metavar="N", help="of torch")
    parser.add_argument("--context-length", type=_positive, metavar="N", help="in tokens")
    parser.add_argument("--blocks", type=_positive, metavar="N", help="of the KV cache")
    parser.add_argument(
        "--block-size", type=_positive, default=16, metavar="N", help="tokens a block (%(default)s)"
    )
    parser.add_argument(
        "--max-sequences",
        type=_positive,
        metavar="N",
        help="that run at once (64 on a CPU, 256 on a GPU)",
    )
    parser.add_argument(
        "--max-step-tokens",
        type=_positive,
        metavar="N",
        help="computed in one step, at least --max-sequences (512 on a CPU, 4096 on a GPU)",
    )
    parser.add_argument(
        "--max-waiting",
        type=_positive,
        default=4096,
        metavar="N",
        help="requests that wait before more are turned away (%(default)s)",
    )
    parser.add_argument(
        "--prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the KV cache of prompts for those that begin in the same way",
    )
    parser.add_argument(
        "--tenant-weight",
        type=_tenant_weight,
        action="append",
        default=[],
        metavar="NAME=WEIGHT",
        help="a tenant's share against the others', which have 1",
    )
    parser.add_argument(
        "--latency-factor",
        type=_latency_factor,
        default=LATENCY_FACTOR,
        metavar="F",
        help="how many times as long as with its own work alone a step of the tenant with the "
        "least work may take; 0: no limit (%(default)g)",
    )
    add_engine_options(parser)
    return parser.parse_args(arguments)


def _tenant_weight(text: str) -> tuple[str, float]:
    name, _, weight = text.rpartition("=")
    if not name or not 0 < float(weight) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be NAME=WEIGHT with a weight above 0, not {text}")
    return name, float(weight)


def _device(text: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", text) is None:
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:N, not {text}")
    return text


def _latency_factor(text: str) -> float:
    value = float(text)
    if value and not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0, or 1 or more, not {text}")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


if __name__ == "__main__":
    main()
