"""Runs the contenders, one after the other, and prints their figures and ratios."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.engine.gguf_file import convert
from bench.engine.plain_checkpoint import convert as write_plain
from engine.demo.expand import demo_checkpoint
from ipc.vocabulary import SIZE, cache_directory
from tests.engine.checkpoints import quantized, random_tensors, save, small_config

ROOT = Path(__file__).parents[2]
LLAMA_CPP = ROOT / ".venv-bench/llama.cpp/bin/python"
VLLM = ROOT / ".venv-bench/vllm/bin/python"
VLLM_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # All in the process whose time is measured.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
CONTROL = "antiphon"

Result = dict[str, Any]


def random_checkpoint() -> Path:
    """Hidden size 512, 8 layers, 32 experts of which 4 are chosen, made once."""
    directory = cache_directory() / "random-512"
    if (directory / "model.safetensors").is_file():
        return directory
    config = small_config(
        vocab_size=SIZE,
        hidden_size=512,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        head_dim=64,
        num_local_experts=32,
        num_experts_per_tok=4,
        sliding_window=128,
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    )
    config["rope_parameters"]["original_max_position_embeddings"] = 4096
    return save(directory, config, quantized(random_tensors(config, torch.bfloat16)))


def gguf_of(directory: Path) -> Path:
    """The checkpoint for llama.cpp, made once."""
    target = cache_directory() / f"{directory.name}.gguf"
    if not target.is_file():
        partial = target.with_suffix(".partial")
        convert(directory, partial)
        partial.replace(target)
    return target


def plain_of(directory: Path) -> Path:
    """The checkpoint for vLLM, whose CPU kernels read no MXFP4, made once."""
    target = cache_directory() / f"{directory.name}-plain"
    if not target.is_dir():
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        write_plain(directory, partial)
        partial.rename(target)
    return target


def contend(name: str, python: Path, model: Path, options: argparse.Namespace) -> Result:
    """Run one contender in a process of its own. Raises CalledProcessError."""
    command = [str(python), "-m", f"bench.engine.{name}", str(model)]
    command += [str(options.threads), str(options.rounds)]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(options.threads),
        "PYTHONPATH": str(ROOT),
        **VLLM_SETTINGS,
    }
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        sys.stderr.buffer.write(done.stderr)
        done.check_returncode()
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(console: Console, name: str, model: Path, options: argparse.Namespace) -> Result:
    """All contenders on one checkpoint."""
    here = Path(sys.executable)
    results = {
        CONTROL: contend("contend_antiphon", here, model, options),
        "transformers": contend("contend_transformers", here, model, options),
    }
    if LLAMA_CPP.is_file():
        results["llama.cpp"] = contend("contend_llama_cpp", LLAMA_CPP, gguf_of(model), options)
    else:
        console.print("llama.cpp is not installed (make bench-engine does it): left out")
    if VLLM.is_file():
        results["vLLM"] = contend("contend_vllm", VLLM, plain_of(model), options)
    else:
        console.print("vLLM is not installed (make bench-engine does it): left out")
    table = Table("tokens per CPU second", *results, "best of the others", title=name)
    own = results[CONTROL]["figures"]
    for figure, value in own.items():
        rates = [result["figures"][figure] for result in results.values()]
        row = [f"{rate:,.0f} ({value / rate:.2f})" for rate in rates]
        table.add_row(figure, *row, f"{value / max(rates[1:]):.2f}")
    console.print(table)
    console.print(f"in brackets: this checkout's rate over theirs; load {os.getloadavg()[0]:.1f}")
    same = results[CONTROL]["sample"] == results["transformers"]["sample"]
    console.print(f"greedy tokens equal transformers': {same}")
    results["inside"] = contend("inside", here, model, options)
    for figure, value in results["inside"].items():
        console.print(f"{figure}: {value:,.2f}")
    return results


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="of every contender (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    console = Console()
    models = {"the demo model": demo_checkpoint(), "hidden size 512": random_checkpoint()}
    found = {name: compare(console, name, model, options) for name, model in models.items()}
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
