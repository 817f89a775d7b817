"""Tensors as they lie in a checkpoint's safetensors files, read through memory maps piece by piece.

The format is 8 bytes of header length, little-endian, a JSON header of dtypes, shapes and offsets,
then the data (https://github.com/huggingface/safetensors, "Format").
"""

import json
import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.config import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

FLOATS = ("BF16", "F16", "F32")
BYTES = ("U8",)
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "U8": torch.uint8,
}
_LENGTH_BYTES = 8
PIECE_BYTES = 4 * 2**20
"""What is read of a large tensor at a time."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file, whose data begins at byte `start`."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def check(self, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
        """Raise CheckpointError unless it has this shape and one of these dtypes."""
        if self.shape != shape:
            raise CheckpointError(
                f"{self.path}: {self.name} has shape {list(self.shape)}, expected {list(shape)}"
            )
        if self.dtype not in dtypes:
            raise CheckpointError(
                f"{self.path}: {self.name} has dtype {self.dtype}, expected {' or '.join(dtypes)}"
            )

    def rows(self, begin: int, end: int) -> Tensor:
        """Rows begin to end of the first dimension, [end - begin, ...], mapped while in use.

        They have a map of their own: pages that were read through a map count as resident memory
        of this process, the whole checkpoint in the end, and the kernel maps some that were not.
        """
        dtype, row = _DTYPES[self.dtype], math.prod(self.shape[1:])
        first = self.start + begin * row * dtype.itemsize
        count = (end - begin) * row
        within = first % mmap.ALLOCATIONGRANULARITY
        with self.path.open("rb") as file:
            # Private, as torch warns of read-only memory; nothing writes to it.
            mapping = mmap.mmap(
                file.fileno(),
                within + count * dtype.itemsize,
                access=mmap.ACCESS_COPY,
                offset=first - within,
            )
        flat = torch.frombuffer(mapping, dtype=dtype, count=count, offset=within)
        return flat.view(end - begin, *self.shape[1:])

    def pieces(self, rows: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """All rows, as many at a time as given or as make `PIECE_BYTES`."""
        row_bytes = math.prod(self.shape[1:]) * _DTYPES[self.dtype].itemsize
        rows = rows or max(1, PIECE_BYTES // row_bytes)
        for begin in range(0, self.shape[0], rows):
            end = min(begin + rows, self.shape[0])
            yield slice(begin, end), self.rows(begin, end)


class Checkpoint:
    """All tensors of a directory's one safetensors file, or of the shards that its index names.

    Raises CheckpointError, which names the file, for a missing, truncated or damaged one, and for
    an index that does not match its shards.
    """

    def __init__(self, directory: Path) -> None:
        self._source = directory / INDEX
        if self._source.is_file():
            self._tensors = _sharded(self._source)
        elif (directory / SINGLE).is_file():
            self._source = directory / SINGLE
            self._tensors = open_file(self._source)
        else:
            raise CheckpointError(f"{directory} has neither {SINGLE} nor {INDEX}")

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def find(
        self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...] = FLOATS
    ) -> StoredTensor:
        """A tensor by name. Raises CheckpointError if it is not there or not like this."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self._source}: the checkpoint has no tensor {name}")
        tensor.check(shape, dtypes)
        return tensor

    def lacks(self, *names: str) -> CheckpointError:
        """The error of a checkpoint that has none of these tensors."""
        return CheckpointError(f"{self._source}: the checkpoint has neither {' nor '.join(names)}")


def _sharded(index: Path) -> dict[str, StoredTensor]:
    try:
        file_of = dict(json.loads(index.read_text())["weight_map"])
        files = {file: index.parent / Path(file).name for file in file_of.values()}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index} is not an index of shards: {error!r}") from error
    shards = {file: open_file(path) for file, path in files.items()}
    for name, file in file_of.items():
        if name not in shards[file]:
            raise CheckpointError(f"{index} names {name} in {file}, which has no such tensor")
    return {name: shards[file][name] for name, file in file_of.items()}


def open_file(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name. Raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            start = _LENGTH_BYTES + length
            if start > size:
                raise ValueError(f"its header of {length} bytes is cut off")
            header = json.loads(file.read(length))
        return {
            name: _stored(path, name, entry, start, size)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _stored(path: Path, name: str, entry: dict[str, Any], start: int, size: int) -> StoredTensor:
    """Raises ValueError, KeyError or TypeError for an entry that makes no sense."""
    dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    begin, end = entry["data_offsets"]
    if min(begin, *shape, 0) < 0 or begin > end:
        raise ValueError(f"{name} lies at {begin} to {end} with shape {list(shape)}")
    if start + end > size:
        raise ValueError(f"it is cut off in {name}, {start + end - size} bytes before its end")
    if dtype in _DTYPES and end - begin != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise ValueError(f"{name} of shape {list(shape)} in {dtype} has {end - begin} bytes")
    return StoredTensor(path, name, dtype, shape, start + begin)
