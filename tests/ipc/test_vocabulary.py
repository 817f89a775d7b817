"""The bundled vocabulary is complete and verified, and damage is told at start."""

import gzip
import os
from importlib import resources
from pathlib import Path

import pytest

from ipc import vocabulary
from ipc.vocabulary import VocabularyError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", "unset")
    return tmp_path / "cache"


def test_every_ordinary_token_has_bytes() -> None:
    tokens = vocabulary.token_bytes()
    assert len(tokens) == 199_998
    assert all(tokens)
    assert len(set(tokens)) == len(tokens)


def test_install_writes_once_and_mends_damage(cache: Path) -> None:
    vocabulary.install_vocabulary()
    path = cache / vocabulary.FILE_NAME
    assert os.environ["TIKTOKEN_ENCODINGS_BASE"] == str(cache)
    first = path.stat().st_ino
    vocabulary.install_vocabulary()
    assert path.stat().st_ino == first
    path.write_bytes(b"damaged")
    vocabulary.install_vocabulary()
    assert path.read_bytes() == vocabulary.vocabulary_text()
    assert os.listdir(cache) == [vocabulary.FILE_NAME]


@pytest.mark.parametrize(
    "packed",
    [b"rubbish", gzip.compress(b"aGk= 0\n", mtime=0), gzip.compress(b"x" * 1000, mtime=0)[:-9]],
)
def test_damaged_data_is_a_clear_error(
    cache: Path, packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / (vocabulary.FILE_NAME + ".gz")).write_bytes(packed)
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    with pytest.raises(VocabularyError, match="bundled vocabulary"):
        vocabulary.install_vocabulary()


def test_an_unwritable_cache_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "file"))
    with pytest.raises(VocabularyError, match="set ANTIPHON_CACHE"):
        vocabulary.install_vocabulary()
