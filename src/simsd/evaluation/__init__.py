"""Held-out question suites, graders, and the guarded process that runs generated code."""
