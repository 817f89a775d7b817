"""The shape, headers and wording of errors."""

import pytest
from pydantic import BaseModel, ValidationError

from frontend.errors import (
    ApiError,
    AuthenticationError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    RateLimitError,
    ServerError,
    context_length_exceeded,
    first_invalid,
    model_not_found,
    parameter_path,
)


@pytest.mark.parametrize(
    ("error", "status", "code", "headers"),
    [
        (InvalidRequestError("no"), 400, "invalid_value", {}),
        (AuthenticationError("no"), 401, "invalid_api_key", {"WWW-Authenticate": "Bearer"}),
        (NotFoundError("no"), 404, "not_found", {}),
        (RateLimitError("no", retry_after=1.2), 429, "rate_limit_exceeded", {"Retry-After": "2"}),
        (OverloadedError("no", retry_after=5), 503, "overloaded", {"Retry-After": "5"}),
        (ServerError("no"), 500, "server_error", {}),
    ],
)
def test_each_error_has_openai_shape(
    error: ApiError, status: int, code: str, headers: dict[str, str]
) -> None:
    assert error.status == status
    assert error.headers() == headers
    detail = error.body()["error"]
    assert detail == {"message": "no", "type": error.type, "param": None, "code": code}


def test_named_errors() -> None:
    missing = model_not_found("gpt-9")
    assert (missing.status, missing.code, missing.param) == (404, "model_not_found", "model")
    long = context_length_exceeded(100, 120, "input")
    assert (long.status, long.code, long.param) == (400, "context_length_exceeded", "input")
    assert "maximum context length is 100 tokens" in long.message
    assert "resulted in 120 tokens" in long.message
    assert "no room" in context_length_exceeded(100, 100, "input").message


def test_parameter_path_leaves_out_the_tags_of_unions() -> None:
    location = ("input", "<list>", 2, "<message>", "content", "<list>", 0, "<other>", "type")
    assert parameter_path(location) == "input[2].content[0].type"


class _Model(BaseModel):
    name: str
    size: int


def test_only_the_first_mistake_is_told() -> None:
    with pytest.raises(ValidationError) as caught:
        _Model.model_validate({"size": "x" * 1000})
    error = first_invalid(caught.value)
    assert error.message == "Missing required parameter: 'name'."
    assert (error.param, error.code) == ("name", "missing_required_parameter")
