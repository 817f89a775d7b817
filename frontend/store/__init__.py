"""Where responses and conversations are kept: SQLite or PostgreSQL, one schema."""

from frontend.store.database import StoreError
from frontend.store.store import Store, StoredConversation, StoredResponse, is_id

__all__ = ["Store", "StoreError", "StoredConversation", "StoredResponse", "is_id"]
