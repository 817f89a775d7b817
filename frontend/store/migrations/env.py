"""Run by Alembic within a transaction of `database.migrate`."""

from alembic import context

from frontend.store.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
