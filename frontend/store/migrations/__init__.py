"""Alembic's: how the tables came to be. A new file in `versions` is a new step."""
