"""vLLM in the engine's role: `python -m engine.vllm`. Only `__main__` imports vllm itself."""
