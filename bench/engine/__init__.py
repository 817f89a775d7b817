"""The engine against others on the same checkpoint: `python -m bench.engine`."""
