"""What routes ask for: the service, the tenant, the body."""

import secrets
from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import Depends, Request

from frontend.errors import InvalidRequestError
from frontend.service import Service

ANONYMOUS = ""

# Dependencies are coroutines throughout: FastAPI runs plain functions in threads.


async def service_of(request: Request) -> Service:
    """The service that the application was started with."""
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(service_of)]


async def _tenant(request: Request, service: TheService) -> str:
    """The tenant whose key the request carries; the anonymous one if no keys are configured."""
    if service.keys is None:
        return ANONYMOUS
    headers = request.headers
    return service.keys.tenant_of(headers.get("authorization"), headers.get("x-api-key"))


Tenant = Annotated[str, Depends(_tenant)]


async def _body(request: Request, service: TheService) -> bytes:
    limit = service.settings.max_body_bytes
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise RequestTooLargeError(f"The request's body is longer than {limit} bytes.")
    return bytes(body)


Body = Annotated[bytes, Depends(_body)]


class RequestTooLargeError(InvalidRequestError):
    """The body is longer than this server reads."""

    status = 413
    default_code = "request_too_large"


def request_id(request: Request) -> str:
    """The id that the client has given its request, or a new one. It is a label, never a key."""
    return request.headers.get("x-request-id") or f"req_{secrets.token_hex(16)}"


def today() -> date:
    """The date in UTC."""
    return datetime.now(UTC).date()
