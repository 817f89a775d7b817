"""Makes a function's JSON schema plain enough for openai-harmony, which shows it as TypeScript.

openai-harmony 0.0.8 shows `any` for what it does not know: `$ref` (as pydantic writes nested
models), `anyOf`, `allOf`, `const`, and `enum` or `properties` without `type`.
"""

from dataclasses import dataclass

from frontend.requests.fields import MAX_NESTING, JsonObject

MAX_SCHEMAS = 5_000
"""References can double what they refer to; beyond this many schemas the rest becomes `any`."""

_KEPT = ("type", "description", "title", "default", "examples", "nullable", "enum", "required")


def plain_schema(schema: JsonObject) -> JsonObject:
    """The schema with local references resolved and types stated; a recursive one ends in `any`."""
    return _Reader(schema).plain(schema, (), 0)


@dataclass(slots=True)
class _Reader:
    root: JsonObject
    schemas: int = 0

    def plain(self, schema: object, references: tuple[str, ...], depth: int) -> JsonObject:
        """The plain form of a schema that was reached through `references`."""
        self.schemas += 1
        if not isinstance(schema, dict) or depth > MAX_NESTING or self.schemas > MAX_SCHEMAS:
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._resolved(schema, reference, references, depth)
        found = {key: schema[key] for key in _KEPT if key in schema}
        if isinstance(properties := schema.get("properties"), dict):
            found["properties"] = {
                name: self.plain(child, references, depth + 2) for name, child in properties.items()
            }
        if isinstance(items := schema.get("items"), dict):
            found["items"] = self.plain(items, references, depth + 1)
        return _typed(self._alternatives(schema, found, references, depth), schema)

    def _alternatives(
        self, schema: JsonObject, found: JsonObject, references: tuple[str, ...], depth: int
    ) -> JsonObject:
        """Add `oneOf`, under which openai-harmony knows alternatives, or merge a lone `allOf`."""
        if isinstance(whole := schema.get("allOf"), list) and len(whole) == 1:
            return {**self.plain(whole[0], references, depth + 1), **found}
        branches = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(branches, list) and branches:
            found["oneOf"] = [self.plain(branch, references, depth + 2) for branch in branches]
        return found

    def _resolved(
        self, schema: JsonObject, reference: str, references: tuple[str, ...], depth: int
    ) -> JsonObject:
        """What a reference points to, under the description that stands beside it."""
        beside: JsonObject = {
            key: schema[key] for key in ("description", "default") if key in schema
        }
        target = _at(self.root, reference)
        if reference in references or not isinstance(target, dict):
            return beside
        return self.plain({**target, **beside}, (*references, reference), depth)


def _at(root: JsonObject, reference: str) -> object:
    """The value at a JSON pointer like `#/$defs/Point` (RFC 6901), or None."""
    if not reference.startswith("#/"):
        return None
    node: object = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _typed(found: JsonObject, schema: JsonObject) -> JsonObject:
    """State the type of an object, a constant or an enumeration that leaves it out."""
    if "const" in schema:
        found = {**found, "enum": [schema["const"]]}
    if "type" in found or "oneOf" in found:
        return found
    if "properties" in found:
        return {"type": "object", **found}
    values = found.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return {"type": "string", **found}
    return found
