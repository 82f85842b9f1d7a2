"""FlexAttention, compiled, in whole decodings: and in graphs (float32, which it is for)."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from simsd.engine.options import SamplingParams
from simsd.errors import ConfigError
from simsd.models import linear
from simsd.models.attention import flexible
from simsd.models.loader import load
from tests.capture import graphs
from tests.drafting import make_drafter
from tests.tiny import Request, decode, engine, folder_of, prompt_of

SIZE = 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_texts_are_those_of_the_fused_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "DTYPES", ())  # our own kernels attend themselves, oneDNN's weights are not tensors
    plain = load(folder_of(2, 0, 0.0), "float32", "cpu")
    other = copy.copy(plain.model)
    try:
        other.attend = flexible(plain.config, plain.model.dtype, plain.model.device)
    except ConfigError as error:
        pytest.skip(str(error))
    asked = [Request(prompt_of(5 + 6 * (n % 2)), SamplingParams(max_tokens=12, seed=n)) for n in range(6)]
    expected = [sequence.token_ids for sequence in decode(engine(plain, SIZE), asked)]
    own = graphs(step=64)
    given = {"num_speculative_tokens": 4, "max_num_seqs": 1, "graphs": own}
    scheduler = engine(replace(plain, model=other), SIZE, make_drafter("model", SIZE), **given)
    scheduler.target.reserve(1, 200)  # else it would grow, and forget
    assert [sequence.token_ids for sequence in decode(scheduler, asked)] == expected
    assert own.replays > 0
