"""Who runs: one loop for ordinary decoding and every speculative mode (method section 6)."""
