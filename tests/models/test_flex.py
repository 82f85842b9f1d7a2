"""FlexAttention: what it computes, when it is taken, and what is said where it cannot be."""

from __future__ import annotations

import pytest
import torch

from simsd.errors import ConfigError
from simsd.models import attention, flex, linear
from simsd.models.attention import attend, attention_of, flexible, kind_of
from tests.models.test_attention import formula, inputs
from tests.tiny import tiny_model


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("n", "rows", "length"), [(1, 8, 20), (3, 40, 300)])
def test_it_equals_the_formula(masked: bool, n: int, rows: int, length: int) -> None:
    values = inputs(n, rows, length, torch.float32, masked)
    torch.testing.assert_close(flex.plain(*values).double(), formula(*values), atol=2e-6, rtol=2e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_it_has_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model().model
    monkeypatch.setattr(linear, "kernels", lambda: None)
    monkeypatch.setattr(flex, "flex_attend", flex.plain)
    monkeypatch.delenv(attention.SWITCH, raising=False)
    assert attention_of(model.config, torch.float32, model.device) is attend
    monkeypatch.setenv(attention.SWITCH, "flex")
    assert attention_of(model.config, torch.float32, model.device) is flex.plain
    assert attention_of(model.config, torch.float64, model.device) is attend


def test_it_is_not_taken_where_our_own_kernels_attend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(attention.SWITCH, "flex")
    monkeypatch.setattr(attention, "own_kernels", lambda device_type, dtype: object() if device_type == "cpu" else None)
    assert kind_of(torch.float32, "cpu") == "sdpa"
    assert kind_of(torch.float32, "cuda") == "flex"


def test_what_there_is_not_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(attention.SWITCH, "flash")
    with pytest.raises(ConfigError, match="SIMSD_ATTENTION is 'flash'; it can be sdpa or flex"):
        kind_of(torch.float32, "cuda")


def test_where_it_cannot_be_compiled_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no compiler\nbacktrace")

    monkeypatch.setattr(flex, "flex_attend", broken)
    model = tiny_model().model
    with pytest.raises(ConfigError, match=r"leave out SIMSD_ATTENTION=flex \(no compiler\)"):
        flexible(model.config, torch.float32, model.device)
