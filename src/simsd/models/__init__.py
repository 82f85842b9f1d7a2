"""What computes: checkpoints, the transformer, its KV cache and its tokenizer."""
