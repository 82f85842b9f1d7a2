from __future__ import annotations

from pathlib import Path

import pytest

from simsd import LLM
from tests.tiny import write_checkpoint


@pytest.fixture(scope="session")
def pair() -> LLM:
    """The embedded pair, in numbers so fine that no tie depends on who shares the batch."""
    return LLM(device="cpu", dtype="float64", max_num_seqs=8)


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A small random model that goes on for up to 256 tokens, quickly; its text is bytes."""
    folder: Path = write_checkpoint(tmp_path_factory.mktemp("noise"), vocab_size=272, mask_token_id=259)
    return LLM(folder, dtype="float64", device="cpu", max_num_seqs=4, method="exact", drafter="self")
