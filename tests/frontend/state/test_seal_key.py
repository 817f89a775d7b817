"""The key of what is sealed: made once, for its user alone, and whole."""

import logging
import multiprocessing
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier

import pytest

from frontend.state.seal_key import SealKeyError, load_seal_key
from postproc_workers.sealing import KEY_BYTES


def test_it_is_made_and_then_the_same(tmp_path: Path) -> None:
    path = tmp_path / "new" / "directory" / "seal.key"
    before = os.umask(0)
    try:
        key = load_seal_key(path)
    finally:
        os.umask(before)
    assert len(key) == KEY_BYTES
    assert load_seal_key(path) == path.read_bytes() == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_many_with_one_process_id_make_one_key(tmp_path: Path) -> None:
    """As the first processes of containers, which share a directory and no ids."""
    for turn in range(20):
        path = tmp_path / f"{turn}" / "seal.key"
        barrier = Barrier(8)

        def load(path: Path = path, barrier: Barrier = barrier) -> bytes:
            barrier.wait()
            return load_seal_key(path)

        with ThreadPoolExecutor(8) as executor:
            keys = [future.result() for future in [executor.submit(load) for _ in range(8)]]
        assert set(keys) == {path.read_bytes()}
        assert list(path.parent.iterdir()) == [path]


def send_key(path: Path, go: Connection, sent: Connection) -> None:
    go.recv()
    sent.send(load_seal_key(path))


def test_many_processes_make_one_key(tmp_path: Path) -> None:
    path = tmp_path / "seal.key"
    context = multiprocessing.get_context("spawn")
    pipes = [(context.Pipe(duplex=False), context.Pipe(duplex=False)) for _ in range(4)]
    processes = [
        context.Process(target=send_key, args=(path, go, sent)) for (go, _), (_, sent) in pipes
    ]
    for process in processes:
        process.start()
    for (_, start), _ in pipes:
        start.send(None)
    assert {received.recv() for _, (received, _) in pipes} == {path.read_bytes()}
    for process in processes:
        process.join(20)
        assert process.exitcode == 0
    for pair in pipes:
        for ends in pair:
            for end in ends:
                end.close()


@pytest.mark.parametrize("size", [0, KEY_BYTES - 1, KEY_BYTES + 1])
def test_a_file_of_another_size_is_left_alone(tmp_path: Path, size: int) -> None:
    path = tmp_path / "seal.key"
    path.write_bytes(b"x" * size)
    with pytest.raises(SealKeyError, match=r"seal\.key is not a key of 64 bytes"):
        load_seal_key(path)
    assert path.read_bytes() == b"x" * size


@pytest.mark.parametrize("place", ["/proc/seal.key", "/proc/nothing/seal.key", "/proc"])
def test_where_nothing_can_be_written_the_key_is_the_processs_own(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        first, second = load_seal_key(Path(place)), load_seal_key(Path(place))
    assert len(first) == len(second) == KEY_BYTES
    assert first != second
    assert "cannot be opened after a restart" in caplog.text


def test_without_a_file_the_key_is_the_processs_own() -> None:
    assert load_seal_key(None) != load_seal_key(None)
