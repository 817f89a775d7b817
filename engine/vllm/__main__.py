"""The engine process with vLLM: `python -m engine.vllm --listen ADDRESS --model DIRECTORY`.

Options that are not its own are vLLM's, as `vllm serve` has them: `--tensor-parallel-size 2`.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from engine.executor import add_engine_options, serve
from engine.vllm import reaper
from engine.vllm.core import Counters, EngineDiedError, EngineHungError, Limits, VllmCore
from engine.vllm.generations import Generations
from engine.vllm.requests import Abilities
from engine.wakeup import Wakeup
from ipc.messages import PROTOCOL_VERSION, EngineInfo
from ipc.process import EXIT_CONFIGURATION, EXIT_HUNG, log_to_standard_error
from ipc.security import SecurityError

log = logging.getLogger(__name__)

PROCESSOR = "engine.vllm.processor:TurnProcessor"
EXIT_DIED = 70
"""Exit status when vLLM's engine process has died (EX_SOFTWARE); a new one is to be started."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process."""
    options, rest = parse(arguments)
    log_to_standard_error("engine", options.log_level)
    reaper.start()
    # These are read when vllm is imported.
    if options.constraints:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", options.log_level.upper())
    counters, wakeup = Counters(), Wakeup()
    llm = _load(options, rest, counters)
    generations = Generations(llm, _sampling_params, wakeup.set)
    core = VllmCore(
        _info(options, llm), generations, counters, _limits(options, llm), time.monotonic
    )
    try:
        serve(core, options, wakeup)
    except SecurityError as error:
        _end(EXIT_CONFIGURATION, error)
    except EngineDiedError as error:
        _end(EXIT_DIED, error)
    except EngineHungError as error:
        _end(EXIT_HUNG, error)
    finally:
        generations.close()


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The options of this process, and those that are left for vLLM."""
    parser = argparse.ArgumentParser(
        # An abbreviation could be the beginning of an option of vLLM's.
        prog="python -m engine.vllm",
        description=__doc__,
        allow_abbrev=False,
    )
    parser.add_argument("--model", required=True, help="`demo` or a Hugging Face directory")
    parser.add_argument("--name", help="what clients call the model; default: its directory's name")
    parser.add_argument("--context-length", type=int, metavar="N", help="in tokens")
    parser.add_argument(
        "--constraints",
        action="store_true",
        help="serve schemas, grammars and forced calls; vLLM then uses its first model runner and "
        "waits for each step's tokens before the next",
    )
    parser.add_argument(
        "--max-waiting",
        type=int,
        default=4096,
        metavar="N",
        help="requests that wait before more are turned away (%(default)s)",
    )
    add_engine_options(parser)
    return parser.parse_known_args(arguments)


def _load(options: argparse.Namespace, rest: list[str], counters: Counters) -> Any:
    """An AsyncLLM. Exits with `EXIT_CONFIGURATION` if that cannot be."""
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        _give_up(f"vLLM cannot be imported (the extra vllm installs it): {error}")
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="vLLM"))
    try:
        parsed = parser.parse_args(rest)
    except SystemExit:
        # The parser has said why; started again it would say so again.
        sys.exit(EXIT_CONFIGURATION)
    parsed.model = _directory(options.model)
    if options.context_length is not None:
        parsed.max_model_len = options.context_length
    # Token ids in and out: no tokenizer. Requests have priorities.
    parsed.skip_tokenizer_init = True
    parsed.scheduling_policy = "priority"
    if options.constraints:
        parsed.logits_processors = [*(parsed.logits_processors or []), PROCESSOR]
    try:
        config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    except (ValueError, OSError) as error:
        _give_up(str(error))
    if options.constraints and config.speculative_config is not None:
        _give_up("--constraints and speculative decoding exclude each other in vLLM")
    return AsyncLLM.from_vllm_config(
        config, disable_log_stats=True, stat_loggers=[_stat_logger(counters)]
    )


def _directory(model: str) -> str:
    if model != "demo":
        return model
    from engine.demo.expand import DemoError, demo_checkpoint

    try:
        return str(demo_checkpoint())
    except DemoError as error:
        _give_up(str(error))


def _stat_logger(counters: Counters) -> Any:
    from vllm.v1.metrics.loggers import StatLoggerBase

    class CountersLogger(StatLoggerBase):  # type: ignore[misc]  # vllm is not there when checked
        """Hands what vLLM tells of itself on."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            counters.record(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None: ...

    return CountersLogger


def _info(options: argparse.Namespace, llm: Any) -> EngineInfo:
    config = llm.vllm_config.model_config
    return EngineInfo(
        PROTOCOL_VERSION,
        model=options.name or Path(options.model).resolve().name,
        context_length=config.max_model_len,
        vocabulary_size=config.get_vocab_size(),
    )


def _limits(options: argparse.Namespace, llm: Any) -> Limits:
    config = llm.vllm_config
    return Limits(
        live=options.max_waiting + config.scheduler_config.max_num_seqs,
        silence=options.step_timeout or float("inf"),
        total_blocks=config.cache_config.num_gpu_blocks or 0,
        abilities=Abilities(
            constraints=options.constraints, speculative=config.speculative_config is not None
        ),
        error_code=_error_code,
    )


def _error_code(error: Exception) -> Any:
    from vllm.exceptions import GracefulHTTPError, VLLMClientError

    if isinstance(error, VLLMClientError):
        return "invalid_request"
    return "overloaded" if isinstance(error, GracefulHTTPError) else "internal"


def _sampling_params(fields: dict[str, Any]) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        **fields, detokenize=False, output_kind=RequestOutputKind.DELTA, skip_clone=True
    )


def _give_up(reason: str) -> NoReturn:
    _end(EXIT_CONFIGURATION, reason)


def _end(status: int, reason: object) -> NoReturn:
    log.critical("%s", reason)
    sys.exit(status)


if __name__ == "__main__":
    main()
