"""The demo checkpoint: a gpt-oss small enough to live in the repository, and how it is made."""
