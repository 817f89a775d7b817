"""A checkpoint's experts written out in bf16, for contenders that do not read MXFP4."""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from engine.mxfp4 import dequantize

BLOCKS, SCALES = "_blocks", "_scales"


def convert(source: Path, target: Path) -> None:
    """Write a checkpoint of one file with the same values to `target`."""
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.endswith(BLOCKS)]:
        base = name.removesuffix(BLOCKS)
        weight = dequantize(tensors.pop(name), tensors.pop(base + SCALES))
        tensors[base] = weight.transpose(1, 2).contiguous()
    target.mkdir(parents=True)
    config = json.loads((source / "config.json").read_text())
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
