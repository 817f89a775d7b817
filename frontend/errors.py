"""The errors that a client is told, in OpenAI's shape.

ApiError
├── InvalidRequestError   400  the request is wrong, or asks for what this version cannot do
├── AuthenticationError   401  no API key, or an unknown one
├── NotFoundError         404  no such model or route
├── RateLimitError        429  the tenant is over its limit; carries Retry-After
├── ServerError           500  a fault of ours
└── OverloadedError       503  the server is full or not ready; carries Retry-After
"""

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

from pydantic import ValidationError


class ErrorDetail(TypedDict):
    """The member `error` of an error reply."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """An error reply."""

    error: ErrorDetail


class ApiError(Exception):
    """An error that a client is told, as HTTP status and JSON body."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param

    def body(self) -> ErrorBody:
        """The JSON body of the reply."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """The HTTP headers that go with this error."""
        return {}


class InvalidRequestError(ApiError):
    """The request is wrong, or asks for what this version cannot do; `param` says where."""

    status = 400
    type = "invalid_request_error"
    default_code = "invalid_value"


class AuthenticationError(ApiError):
    """No API key, or an unknown one."""

    status = 401
    type = "invalid_request_error"
    default_code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        """The scheme that is asked for, as RFC 9110 wants it in every 401."""
        return {"WWW-Authenticate": "Bearer"}


class NotFoundError(ApiError):
    """No such model or route."""

    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class RetryableError(ApiError):
    """Base of what may succeed when it is sent again after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after

    def headers(self) -> dict[str, str]:
        """Retry-After in whole seconds, rounded up."""
        return {"Retry-After": str(math.ceil(self.retry_after))}


class RateLimitError(RetryableError):
    """The tenant is over its limit."""

    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"


class OverloadedError(RetryableError):
    """The server is full, or its engine is not ready."""

    status = 503
    type = "server_error"
    default_code = "overloaded"


class ServerError(ApiError):
    """A fault of ours."""

    status = 500
    type = "server_error"
    default_code = "server_error"


def model_not_found(model: str) -> NotFoundError:
    """The error for a model name that is not served here."""
    return NotFoundError(
        f"The model {model!r} does not exist.", code="model_not_found", param="model"
    )


def context_length_exceeded(limit: int, tokens: int | None, param: str) -> InvalidRequestError:
    """The error for a prompt of `tokens` tokens (None: too many to count) that leaves no room in a
    context of `limit`."""
    number = f"more than {limit}" if tokens is None else tokens
    room = " That leaves no room for an answer." if tokens == limit else ""
    return InvalidRequestError(
        f"This model's maximum context length is {limit} tokens. However, your messages resulted "
        f"in {number} tokens.{room}",
        code="context_length_exceeded",
        param=param,
    )


def prompt_too_long(limit: int, tokens: int) -> InvalidRequestError:
    """The same as Anthropic's clients know it: some read the numbers."""
    return InvalidRequestError(
        f"prompt is too long: {tokens} tokens > {limit} maximum",
        code="context_length_exceeded",
        param="messages",
    )


def first_invalid(error: ValidationError) -> InvalidRequestError:
    """The first of pydantic's errors, as one short sentence that names the parameter."""
    return invalid_parameter(
        error.errors(include_url=False, include_context=False, include_input=False)[0]
    )


def invalid_parameter(first: Mapping[str, Any], *, skip: int = 0) -> InvalidRequestError:
    """One of pydantic's errors; the first `skip` steps of its location are left out."""
    param = parameter_path(first["loc"][skip:])
    kind = first["type"]
    if kind == "missing":
        return InvalidRequestError(
            f"Missing required parameter: '{param}'.",
            code="missing_required_parameter",
            param=param,
        )
    told = first["msg"].replace(" after validation", "")
    reason = _REASONS.get(kind) or re.sub(r"^\w+ should ", "must ", told)
    code = kind if kind in _CODES else "invalid_type" if "type" in kind else "invalid_value"
    return InvalidRequestError(f"Invalid '{param}': {reason}.", code=code, param=param)


def parameter_path(location: tuple[int | str, ...]) -> str:
    """A pydantic error location as a client writes it: `input[2].content[0].type`.

    The tags of our unions stand in angle brackets and are no part of the path, nor is pydantic's
    mark of an error in a member's name.
    """
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<") and step != "[key]":
            path += f".{step}" if path else step
    return path


_REASONS = {
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
_CODES = {"unsupported_parameter", "unsupported_value", "invalid_type"}
