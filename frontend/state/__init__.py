"""What outlives a request: stored responses and conversations, and responses in the background."""
