"""The bodies of `POST /tokenize` and `POST /detokenize`, as vLLM has them."""

from typing import Annotated, Any

from pydantic import Field

from frontend.requests.chat import ChatRequest
from frontend.requests.completions import MAX_TOKEN_IDS, Id
from frontend.requests.fields import JsonObject, RequestModel, refuse, validated


class TokenizeText(RequestModel):
    """A text. No token is added to it: `add_special_tokens` is without effect. With
    `special_tokens` the names of control tokens stand for them."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChat(ChatRequest):
    """A conversation. Without `add_generation_prompt` the beginning of the answer is left out."""

    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[
        Any, refuse("a message that has ended cannot be continued", False)
    ] = None
    return_token_strs: bool | None = None


class Detokenize(RequestModel):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[Id], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]


def check_tokenize(value: JsonObject, model: str) -> TokenizeText | TokenizeChat:
    """Either of the bodies of `/tokenize`; `model` is the one that need not be named. Raises
    InvalidRequestError."""
    if "messages" in value:
        return validated(TokenizeChat, {"model": model} | value)
    return validated(TokenizeText, value)
