"""vLLM in the engine's role, over a fake AsyncLLM and, where it is installed, the real one."""
