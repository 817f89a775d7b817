"""`POST /tokenize` and `POST /detokenize`."""

from fastapi import APIRouter

from frontend.plain_text import check_tokens, decode_tokens, encode_text
from frontend.prepare import check_model, prepare_chat
from frontend.requests.fields import JsonObject, decode_body, parse_body
from frontend.requests.tokens import Detokenize, TokenizeChat, TokenizeText, check_tokenize
from frontend.routes.dependencies import Body, Tenant, TheService, today
from frontend.routes.schemas import body_schema
from frontend.service import Service
from ipc.vocabulary import START
from postproc_workers.logprobs import token_name

routes = APIRouter(tags=["tokens"])


@routes.post("/tokenize", openapi_extra=body_schema(TokenizeText, TokenizeChat))
async def tokenize(service: TheService, tenant: Tenant, body: Body) -> JsonObject:
    """The tokens of a text, or of the prompt that a conversation makes."""
    asked = check_tokenize(decode_body(body), service.model.model)
    tokens = await _tokens(asked, service)
    reply: JsonObject = {
        "count": len(tokens),
        "max_model_len": service.model.context_length,
        "tokens": tokens,
    }
    if asked.return_token_strs:
        reply["token_strs"] = [token_name(token).decode(errors="replace") for token in tokens]
    return reply


async def _tokens(asked: TokenizeText | TokenizeChat, service: Service) -> list[int]:
    if isinstance(asked, TokenizeText):
        check_model(asked.model or service.model.model, service.model)
        special = asked.special_tokens is True
        return await encode_text(service.renderer, asked.prompt, special=special)
    prompt = prepare_chat(asked, service.model, service.renderer, today()).prompt
    if asked.add_generation_prompt is False:
        return prompt[: len(prompt) - 1 - prompt[::-1].index(START)]
    return prompt


@routes.post("/detokenize", openapi_extra=body_schema(Detokenize))
async def detokenize(service: TheService, tenant: Tenant, body: Body) -> JsonObject:
    """The text of tokens."""
    asked = parse_body(Detokenize, body)
    check_model(asked.model or service.model.model, service.model)
    check_tokens(asked.tokens, service.model, "tokens")
    return {"prompt": await decode_tokens(asked.tokens)}
