"""Responses, conversations and the items of conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("tenant", sa.String, primary_key=True),
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("previous_response_id", sa.String),
        sa.Column("conversation_id", sa.String),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("record", sa.LargeBinary),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("alive_until", sa.Float),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
    )
    op.create_index("responses_by_age", "responses", ["created_at"])
    runs = sa.text("alive_until IS NOT NULL")
    op.create_index(
        "responses_by_life",
        "responses",
        ["alive_until"],
        sqlite_where=runs,
        postgresql_where=runs,
    )
    op.create_table(
        "conversations",
        sa.Column("tenant", sa.String, primary_key=True),
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
    )
    op.create_index("conversations_by_use", "conversations", ["used_at"])
    op.create_table(
        "conversation_items",
        sa.Column("tenant", sa.String, primary_key=True),
        sa.Column("conversation_id", sa.String, primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("item", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "conversation_id"],
            ["conversations.tenant", "conversations.id"],
            name="conversation_items_of_conversations",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "conversation_items_by_id",
        "conversation_items",
        ["tenant", "conversation_id", "id"],
        unique=True,
    )
