"""What clients of Anthropic's API are told otherwise: errors and models."""

from datetime import UTC, datetime

from starlette.requests import Request

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def speaks_anthropic(request: Request) -> bool:
    """Whether the client expects Anthropic's shapes: its API's routes, or its version header."""
    return request.url.path.startswith("/v1/messages") or "anthropic-version" in request.headers


def error_body(status: int, message: str, request_id: str) -> dict[str, object]:
    """An error in Anthropic's shape."""
    other = "api_error" if status >= 500 else "invalid_request_error"
    detail = {"type": _ERROR_TYPES.get(status, other), "message": message}
    return {"type": "error", "error": detail, "request_id": request_id}


def model_object(model: str, created: int, context_length: int) -> dict[str, object]:
    """A model; `created` is in Unix seconds."""
    return {
        "type": "model",
        "id": model,
        "display_name": model,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": context_length - 1,
        "max_tokens": context_length - 1,
    }


def model_list(model: dict[str, object]) -> dict[str, object]:
    """The list of the one model."""
    return {"data": [model], "has_more": False, "first_id": model["id"], "last_id": model["id"]}
