"""What kind of failure an exception of a step is."""

_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc")


def is_out_of_memory(error: Exception) -> bool:
    """Whether it says that memory has run out: Python's own, torch's of a CPU, which is a plain
    RuntimeError, and of a GPU, which is a subclass of it."""
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)
