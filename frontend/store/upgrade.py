"""Brings a database's tables up to date. Alembic takes 0.2 s to import, and is not needed where
they are."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

_MIGRATIONS = Path(__file__).parent / "migrations"


class VersionError(Exception):
    """The tables are of a version that this one does not know."""


def upgrade(connection: Connection) -> None:
    """Take the steps that are missing, in the running transaction. Raises VersionError."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise VersionError(str(error)) from error
