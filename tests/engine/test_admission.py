"""Which sampling parameters an engine takes."""

import math

import msgspec
import pytest

from engine.admission import RequestError, check_request
from ipc.messages import EngineInfo, GenerationRequest, Sampling

INFO = EngineInfo(version=2, model="model", context_length=100, vocabulary_size=300)


def _check(field: str, value: object) -> None:
    sampling = msgspec.structs.replace(Sampling(max_tokens=5), **{field: value})
    check_request(GenerationRequest(1, 1, 0, [1, 2], sampling), INFO)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {300: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logprobs", -1),
        ("logprobs", 21),
    ],
)
def test_parameter_out_of_its_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field) as refusal:
        _check(field, value)
    assert refusal.value.code == "invalid_request"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_p", 0.0),
        ("min_p", 1.0),
        ("presence_penalty", -2.0),
        ("frequency_penalty", 2.0),
        ("repetition_penalty", 0.01),
        ("logit_bias", {0: -100.0, 299: 100.0}),
        ("logprobs", 0),
        ("logprobs", 20),
    ],
)
def test_bounds_of_the_ranges_are_taken(field: str, value: object) -> None:
    _check(field, value)
