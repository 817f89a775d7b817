"""The o200k_base vocabulary: what the token ids on the wire mean. It is bundled and verified, so
no process ever reaches out for it.

The file (MIT licence, see NOTICE) holds one line a token: its bytes in base64, a space, its id.
"""

import base64
import gzip
import hashlib
import os
import tempfile
from importlib import resources
from pathlib import Path

import platformdirs

SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
SIZE = 201_088
"""Rows of a gpt-oss embedding: ordinary tokens, special tokens and a few unused rows."""
FILE_NAME = "o200k_base.tiktoken"

# Harmony's special tokens; all ordinary tokens come before them.
FIRST_SPECIAL = 199_998
STARTOFTEXT = 199_998
ENDOFTEXT = 199_999
RETURN = 200_002
CONSTRAIN = 200_003
CHANNEL = 200_005
START = 200_006
END = 200_007
MESSAGE = 200_008
CALL = 200_012

SPECIAL_NAMES = {
    STARTOFTEXT: "<|startoftext|>",
    ENDOFTEXT: "<|endoftext|>",
    RETURN: "<|return|>",
    CONSTRAIN: "<|constrain|>",
    CHANNEL: "<|channel|>",
    START: "<|start|>",
    END: "<|end|>",
    MESSAGE: "<|message|>",
    CALL: "<|call|>",
}


def special_name(token: int) -> str:
    """How a special token is written; most of them are reserved and mean nothing."""
    return SPECIAL_NAMES.get(token, f"<|reserved_{token}|>")


class VocabularyError(Exception):
    """The bundled vocabulary is missing or damaged; the installation has to be repaired."""


def cache_directory() -> Path:
    """Where files that are made from bundled data are kept (`ANTIPHON_CACHE` overrides it)."""
    override = os.environ.get("ANTIPHON_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("antiphon")


def vocabulary_text() -> bytes:
    """The verified vocabulary file.

    Raises VocabularyError if the bundled data is missing or does not have the known SHA-256.
    """
    try:
        packed = resources.files("ipc").joinpath("data", FILE_NAME + ".gz").read_bytes()
        text = gzip.decompress(packed)
    except (OSError, EOFError, ValueError) as error:
        raise VocabularyError(f"the bundled vocabulary cannot be read: {error}") from error
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        raise VocabularyError(f"the bundled vocabulary is damaged: its SHA-256 is {found}")
    return text


def token_bytes() -> list[bytes]:
    """The bytes of each ordinary token, by id. Special tokens come after the last of them."""
    lines = [line.split() for line in vocabulary_text().splitlines()]
    tokens = [b""] * len(lines)
    for encoded, number in lines:
        tokens[int(number)] = base64.b64decode(encoded)
    return tokens


def install_vocabulary() -> None:
    """Hand the vocabulary to openai-harmony through `TIKTOKEN_ENCODINGS_BASE`.

    To be called before the first use of openai-harmony in a process. The unpacked file lies in
    the cache directory and is replaced, atomically, whenever it is not what it should be. Raises
    VocabularyError if the bundled data is damaged or the cache directory cannot be written.
    """
    directory = cache_directory()
    path = directory / FILE_NAME
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        text = vocabulary_text()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
                file.write(text)
            os.replace(file.name, path)
        except OSError as error:
            raise VocabularyError(f"cannot write {path}: {error}; set ANTIPHON_CACHE") from error
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(directory)
