"""The OpenAPI description of bodies that are parsed in their routes."""

from pydantic import BaseModel


def body_schema(*models: type[BaseModel]) -> dict[str, object]:
    """What a route's `openapi_extra` says of its body, which is of one of the models.
    `frontend.openapi` puts the definitions where the references say that they are."""
    schemas = [
        model.model_json_schema(ref_template=f"#/components/schemas/{model.__name__}.{{model}}")
        for model in models
    ]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}
