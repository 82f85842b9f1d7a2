"""Settings that every test shares."""

from __future__ import annotations

import os

# One thread a process: the models are tiny, and pytest-xdist runs one process a core. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
