"""The method itself: pure functions on tensors. No model, no cache, no I/O; depends on torch alone."""
