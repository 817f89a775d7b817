"""What all tests share: deterministic hypothesis runs and directories of their own."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from ipc.vocabulary import install_vocabulary

settings.register_profile("suite", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One vocabulary, one demo checkpoint and one store for the whole run, none of them the
    user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("ANTIPHON_DATA", str(tmp_path_factory.mktemp("data")))
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", "")
        install_vocabulary()
        yield
