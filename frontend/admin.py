"""`/admin`: the operator's routes. They want an admin key, or, if none is configured, a server that
listens on a loopback address only; on a public address they are then switched off."""

import ipaddress
from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter, Depends, Request

from frontend.control import ControlError
from frontend.errors import ApiError, InvalidRequestError, NotFoundError
from frontend.resizing import ResizeError
from frontend.service import Service
from frontend.settings import FrontendSettings


class ConflictError(ApiError):
    """The server is not in a state to do this."""

    status = 409
    type = "invalid_request_error"
    default_code = "conflict"


class Resize(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /admin/postprocess-workers`: one of the two."""

    workers: int | None = None
    drain: int | None = None


def listens_on_loopback(settings: FrontendSettings) -> bool:
    """Whether only this machine can reach the server."""
    if settings.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        return False


def admin_routes(service_of: Callable[[Request], Awaitable[Service]]) -> APIRouter:
    """The routes; `service_of` finds the service of a request."""

    async def admitted(request: Request) -> Service:
        service = await service_of(request)
        if service.admin_keys is not None:
            service.admin_keys.tenant_of(request.headers.get("authorization"))
        elif not listens_on_loopback(service.settings):
            raise NotFoundError("The admin routes are off: start the server with --admin-keys.")
        return service

    routes = APIRouter(prefix="/admin", tags=["admin"])
    path = "/postprocess-workers"

    @routes.get(path)
    async def list_workers(service: Service = Depends(admitted)) -> dict[str, object]:  # noqa: B008
        """The workers and how many streams each has."""
        return _workers(service)

    @routes.post(path)
    async def resize(
        request: Request,
        service: Service = Depends(admitted),  # noqa: B008
    ) -> dict[str, object]:
        """Set the number of workers, or drain one, while serving."""
        asked = _resize(await request.body())
        if service.resizer is None:
            raise ConflictError(
                "This server post-processes inside its frontend: it has no workers to change."
            )
        try:
            if asked.workers is not None:
                await service.resizer.set_count(asked.workers)
            if asked.drain is not None:
                await service.resizer.drain(asked.drain)
        except (ResizeError, ControlError) as error:
            raise ConflictError(f"The workers were not changed as asked: {error}.") from error
        return _workers(service)

    return routes


def _resize(body: bytes) -> Resize:
    try:
        asked = msgspec.json.decode(body, type=Resize)
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"Invalid body: {error}") from error
    if (asked.workers is None) == (asked.drain is None):
        raise InvalidRequestError("Invalid body: give either 'workers' or 'drain'.")
    if asked.workers is not None and not 1 <= asked.workers <= 64:
        raise InvalidRequestError("Invalid 'workers': 1 to 64 are possible.", param="workers")
    return asked


def _workers(service: Service) -> dict[str, object]:
    pool = service.pool
    return {
        "workers": [
            {"worker": worker, "up": worker in pool.up, "streams": streams}
            for worker, streams in sorted(pool.load.items())
        ]
    }
