"""Run by Alembic within a transaction of `database.migrate`."""

from alembic import context

from frontend.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="antiphon_schema",
)
context.run_migrations()
