"""Token generation: checkpoint loader, model, KV cache, scheduler, sampler, executor process."""
