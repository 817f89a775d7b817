"""The request bodies of each API, as pydantic models."""
