"""Tensor parallelism: one model on several devices or processes, seen by the engine as one."""
