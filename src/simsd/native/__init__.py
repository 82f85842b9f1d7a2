"""Kernels for CPUs in C++: what PyTorch has no fast operator for. Optional: without a compiler nothing here is used."""
