"""The tables as they are now; `migrations` has how they came to be. A test compares the two."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    text,
)

metadata = MetaData()

VERSION_TABLE = "antiphon_schema"
VERSION = "0001"
"""The last of the migrations."""
RUNS = text("alive_until IS NOT NULL")

responses = Table(
    "responses",
    metadata,
    Column("tenant", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("status", String, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("previous_response_id", String),
    Column("conversation_id", String),
    Column("input", LargeBinary, nullable=False),
    Column("record", LargeBinary),
    Column("owner", String, nullable=False),
    Column("alive_until", Float),  # null: it has ended
    Column("cancel_requested", Boolean, nullable=False),
    Index("responses_by_age", "created_at"),
    # Of those that run alone: the others would all be in one place of it.
    Index("responses_by_life", "alive_until", sqlite_where=RUNS, postgresql_where=RUNS),
)

conversations = Table(
    "conversations",
    metadata,
    Column("tenant", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("used_at", BigInteger, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Index("conversations_by_use", "used_at"),
)

conversation_items = Table(
    "conversation_items",
    metadata,
    Column("tenant", String, primary_key=True),
    Column("conversation_id", String, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("id", String, nullable=False),
    Column("item", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["tenant", "conversation_id"],
        ["conversations.tenant", "conversations.id"],
        name="conversation_items_of_conversations",
        ondelete="CASCADE",
    ),
    Index("conversation_items_by_id", "tenant", "conversation_id", "id", unique=True),
)
