"""`POST /v1/completions`."""

import secrets
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from frontend.prepare_completions import prepare_completions
from frontend.requests.completions import CompletionRequest, parse_completion
from frontend.routes.dependencies import Body, Tenant, TheService
from frontend.routes.generate import Planned, generate
from frontend.routes.schemas import body_schema
from ipc.messages import CompletionFormat, Open, Terminal
from postproc_workers.encoders import Usage
from postproc_workers.encoders.completions import completion, last_chunks

routes = APIRouter(tags=["completions"])


@routes.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def create_completion(
    request: Request, service: TheService, tenant: Tenant, body: Body
) -> Response:
    """Go on with a text (OpenAI's older Completions API): no roles, no markup."""
    asked = parse_completion(body)
    prompts = await prepare_completions(asked, service.model, service.renderer)
    response_id = f"cmpl-{secrets.token_hex(16)}"
    planned = [
        Planned(prepared, tenant, response_id, None, first=place * prepared.choices)
        for place, prepared in enumerate(prompts)
    ]
    lengths = [len(prepared.prompt) for prepared in prompts]
    return generate(request, service, *planned, merge=partial(ChoicesOfACompletion, lengths))


class ChoicesOfACompletion:
    """What several choices share: their usage, and the end of the stream. Each of the prompts,
    which have so many tokens, has as many choices."""

    def __init__(self, prompts: Sequence[int], opening: Open) -> None:
        self._prompts = prompts
        self._opening = opening

    def end(self, terminals: Sequence[Terminal]) -> bytes:
        output = self._opening.format
        assert isinstance(output, CompletionFormat)
        usage = self._usage(terminals) if output.include_usage else None
        return last_chunks(self._opening, usage)

    def whole(self, bodies: Sequence[bytes], terminals: Sequence[Terminal]) -> bytes:
        return completion(self._opening, bodies, self._usage(terminals))

    def _usage(self, terminals: Sequence[Terminal]) -> Usage:
        """A prompt counts once, and what of it was cached when its first choice began."""
        firsts = terminals[:: len(terminals) // len(self._prompts)]
        return Usage(
            sum(self._prompts),
            sum(terminal.cached_tokens for terminal in firsts),
            sum(terminal.output_tokens for terminal in terminals),
        )
