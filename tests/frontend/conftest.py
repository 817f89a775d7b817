"""What the tests of the HTTP edge share: one renderer, one model."""

from datetime import date

import pytest
from openai_harmony import HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding

from frontend.prompt import PromptRenderer
from ipc.messages import PROTOCOL_VERSION, EngineInfo
from ipc.vocabulary import install_vocabulary

TODAY = date(2026, 12, 1)


@pytest.fixture(scope="session")
def renderer() -> PromptRenderer:
    return PromptRenderer()


@pytest.fixture(scope="session")
def harmony() -> HarmonyEncoding:
    install_vocabulary()
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


@pytest.fixture(scope="session")
def engine() -> EngineInfo:
    return EngineInfo(PROTOCOL_VERSION, "gpt-oss-20b", 4096, 201_088)
