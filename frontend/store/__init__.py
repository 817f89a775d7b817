"""Where responses and conversations are kept: SQLite or PostgreSQL, one schema."""

from frontend.store.database import StoreError
from frontend.store.store import Store, StoredConversation, StoredResponse

__all__ = ["Store", "StoreError", "StoredConversation", "StoredResponse"]
