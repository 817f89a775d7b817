"""Expansion of the bundled checkpoint: the same everywhere, whole or not at all."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from engine.demo.expand import DemoError, demo_checkpoint, is_whole
from ipc.vocabulary import SIZE


def fingerprint(path: Path) -> str:
    """The SHA-256 of all tensors, by name."""
    digest = hashlib.sha256()
    with safe_open(path, "np") as weights:
        names = sorted(weights.keys())
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name in names:
        start, end = (8 + length + offset for offset in header[name]["data_offsets"])
        digest.update(f"{name} {header[name]['dtype']} {header[name]['shape']}".encode())
        digest.update(data[start:end])
    return digest.hexdigest()


def test_expands_to_the_known_checkpoint() -> None:
    directory = demo_checkpoint()
    assert {path.name for path in directory.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    config = json.loads((directory / "config.json").read_text())
    assert config["vocab_size"] == SIZE
    assert config["max_position_embeddings"] == 131_072
    assert config["layer_types"] == ["sliding_attention", "full_attention"] * 2
    assert fingerprint(directory / "model.safetensors") == KNOWN


def test_is_kept() -> None:
    directory = demo_checkpoint()
    made = (directory / "model.safetensors").stat().st_mtime_ns
    assert demo_checkpoint() == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == made


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors"])
def test_damage_is_noticed(name: str, tmp_path: Path) -> None:
    for path in demo_checkpoint().iterdir():
        (tmp_path / path.name).symlink_to(path)
    assert is_whole(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    assert not is_whole(tmp_path)
    (tmp_path / name).write_bytes(content[:-4])
    assert not is_whole(tmp_path)


def test_racing_processes_repair_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = demo_checkpoint().name
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text("{}")
    program = "from engine.demo.expand import demo_checkpoint; print(demo_checkpoint())"
    command = [sys.executable, "-c", program]
    racing = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in racing:
        output, _ = process.communicate(timeout=60)
        assert output.strip() == str(tmp_path / name)
        assert process.returncode == 0
    assert is_whole(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {name, "demo.lock"}


def test_an_unwritable_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "file"))
    with pytest.raises(DemoError, match="ANTIPHON_CACHE"):
        demo_checkpoint()


KNOWN = "7731d6979ba35b95ec2524e1a921ee4d8eca3632eee62ca2010e72909d6f1f09"
