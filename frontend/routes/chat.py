"""`POST /v1/chat/completions`."""

import secrets
from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from frontend.prepare import prepare_chat
from frontend.requests.chat import ChatRequest, parse_chat
from frontend.routes.dependencies import Body, Tenant, TheService, today
from frontend.routes.generate import generate, plan
from frontend.routes.schemas import body_schema
from ipc.messages import ChatFormat, Open, Terminal
from postproc_workers.encoders import Usage
from postproc_workers.encoders.chat import completion, last_chunks

routes = APIRouter(tags=["chat"])


@routes.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def create_chat_completion(
    request: Request, service: TheService, tenant: Tenant, body: Body
) -> Response:
    """Generate a chat completion (OpenAI's Chat Completions API)."""
    prepared = prepare_chat(
        parse_chat(body),
        service.model,
        service.renderer,
        today(),
        reasoning_member=service.settings.reasoning_member,
    )
    planned = await plan(prepared, tenant, f"chatcmpl-{secrets.token_hex(16)}")
    return generate(request, service, planned, merge=ChoicesOfAChat)


class ChoicesOfAChat:
    """What several choices share: their usage, and the end of the stream."""

    def __init__(self, opening: Open) -> None:
        self._opening = opening

    def end(self, terminals: Sequence[Terminal]) -> bytes:
        output = self._opening.format
        assert isinstance(output, ChatFormat)
        usage, reasoning = self._usage(terminals)
        return last_chunks(self._opening, usage if output.include_usage else None, reasoning)

    def whole(self, bodies: Sequence[bytes], terminals: Sequence[Terminal]) -> bytes:
        usage, reasoning = self._usage(terminals)
        return completion(self._opening, bodies, usage, reasoning)

    def _usage(self, terminals: Sequence[Terminal]) -> tuple[Usage, int]:
        """The prompt counts once, and what of it was cached when the first choice began."""
        usage = Usage(
            self._opening.prompt_tokens,
            terminals[0].cached_tokens,
            sum(terminal.output_tokens for terminal in terminals),
        )
        return usage, sum(terminal.reasoning_tokens for terminal in terminals)
