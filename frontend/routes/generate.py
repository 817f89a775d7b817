"""From a prepared request to the response that sends what the engine generates for it."""

import time
from collections.abc import Callable
from functools import partial

from fastapi import Request
from fastapi.responses import Response
from msgspec.structs import replace

from frontend.generation_response import GenerationResponse, MakeBody, OnOpen
from frontend.merged import Merge, MergedStreams, open_all
from frontend.prepare import Prepared
from frontend.routes.dependencies import request_id
from frontend.service import Service
from frontend.streams import Generation, StreamHandle
from frontend.structured import constraint_of
from ipc.messages import ChatFormat, CompletionFormat, Constraint, Open

MakeMerge = Callable[[Open], Merge]


class Planned:
    """A request that can be started: as one stream, or as several of one reply, whose numbers are
    counted from `first`."""

    def __init__(
        self,
        prepared: Prepared,
        tenant: str,
        response_id: str,
        constraint: Constraint | None,
        *,
        keep: bool = False,
        first: int = 0,
    ) -> None:
        self.prepared = prepared
        self.keep = keep
        self._tenant = tenant
        self._response_id = response_id
        self._constraint = constraint
        self._first = first
        self._created = int(time.time())

    def opening(self, stream_id: int, lease: int, choice: int | None = None) -> Open:
        """The Open of the request's stream, or of that of one of its choices."""
        prepared = self.prepared
        output = prepared.format
        if choice is not None and isinstance(output, ChatFormat | CompletionFormat):
            output = replace(output, part=self._first + choice)
        return Open(
            stream_id,
            lease,
            self._response_id,
            prepared.model,
            self._created,
            len(prepared.prompt),
            output,
            prepared.streaming,
            prepared.tools,
            prepared.stop,
            prepared.parallel_tool_calls,
            self._tenant,
            custom=prepared.custom,
            keep=self.keep,
        )

    def generation(self, choice: int | None = None) -> Generation:
        """What is to be generated. Each choice has a seed of its own."""
        prepared = self.prepared
        sampling = prepared.sampling
        if choice and sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + choice) % 2**63)
        return Generation(
            prepared.prompt,
            sampling,
            lambda stream_id, lease: self.opening(stream_id, lease, choice),
            prepared.priority,
            prepared.cache_salt,
            self._constraint,
        )


async def plan(prepared: Prepared, tenant: str, response_id: str, *, keep: bool = False) -> Planned:
    """Check what is left to be checked. Raises InvalidRequestError."""
    constraint = await constraint_of(prepared.wanted)
    return Planned(prepared, tenant, response_id, constraint, keep=keep)


def generate(
    request: Request,
    service: Service,
    *planned: Planned,
    merge: MakeMerge | None = None,
    on_open: OnOpen | None = None,
    make_body: MakeBody | None = None,
) -> Response:
    """The response that opens the streams of a request, or those of each of its prompts, and sends
    what they say. Several choices are merged by `merge`; for `on_open` and `make_body` see
    GenerationResponse."""
    streaming = planned[0].prepared.streaming
    parts = [(one, choice) for one in planned for choice in range(one.prepared.choices)]

    def open_stream() -> StreamHandle | MergedStreams:
        if len(parts) == 1 or merge is None:
            return service.streams.open(planned[0].generation())
        handles = open_all(
            [partial(service.streams.open, one.generation(choice)) for one, choice in parts]
        )
        return MergedStreams(handles, merge(handles[0].opening), streaming)

    # The second name is Anthropic's.
    headers = dict.fromkeys(("x-request-id", "request-id"), request_id(request))
    return GenerationResponse(open_stream, streaming, headers, on_open, make_body)
