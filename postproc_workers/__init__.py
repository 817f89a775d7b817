"""Harmony streams, their registry, the encoders of each API's events, and the worker process."""
