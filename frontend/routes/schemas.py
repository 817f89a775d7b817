"""The OpenAPI description of bodies that are parsed in their routes."""

from pydantic import BaseModel


def body_schema(model: type[BaseModel]) -> dict[str, object]:
    """What a route's `openapi_extra` says of its body."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}
