from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest
from typer.testing import CliRunner

from simsd.cli import options
from simsd.cli.main import app
from simsd.cli.options import Decoding
from simsd.core.schedule import STRATEGIES
from simsd.core.states import KINDS
from simsd.engine import options as engine
from simsd.engine.options import DecodingOptions, SamplingParams
from simsd.errors import ConfigError
from simsd.llm import LLM
from simsd.models.pair import QUANTIZE


def test_choices_are_the_engines() -> None:
    assert options.METHODS == engine.METHODS
    assert options.LAYOUTS == engine.LAYOUTS
    assert options.ACCEPTANCES == engine.ACCEPTANCES
    assert options.DRAFTERS == engine.DRAFTERS
    assert set(options.STATES) == set(KINDS)
    assert set(options.STRATEGIES) == set(STRATEGIES)
    assert options.QUANTIZE == QUANTIZE
    assert options.MOST_DRAFTED == engine.MOST_DRAFTED


def test_every_flag_is_an_option_of_the_engine() -> None:
    known = {f.name for f in fields(DecodingOptions)} | set(inspect.signature(LLM.__init__).parameters)
    assert set(options._LLM_NAMES) <= known
    assert set(options._SAMPLING_NAMES) <= {f.name for f in fields(SamplingParams)}


def test_only_given_options_are_passed_on() -> None:
    assert Decoding().llm_options() == {}
    assert Decoding().sampling_params() == SamplingParams()
    assert Decoding(draft_ahead=False).llm_options() == {"draft_ahead": False}
    given = Decoding(method="simsd", max_tokens=0, stop=["a", "b"], ignore_eos=True, temperature=0.0)
    assert given.llm_options() == {"method": "simsd"}
    assert given.sampling_params() == SamplingParams(max_tokens=0, stop=["a", "b"], ignore_eos=True, temperature=0.0)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("method", "--method"),
        ("remasking_strategy", "--remasking-strategy"),
        ("dtype", "--dtype"),
        ("states", "--states"),
        ("quantize", "--quantize"),
    ],
)
def test_a_wrong_choice_names_the_right_ones(name: str, flag: str) -> None:
    given: dict[str, Any] = {name: "fast"}
    with pytest.raises(ConfigError, match=f"{flag} is 'fast'; choose one of .*, "):
        Decoding(**given)


@pytest.mark.parametrize(("word", "window"), [("auto", "auto"), ("1", 1), ("64", 64)])
def test_a_window_is_auto_or_a_number(word: str, window: int | str) -> None:
    assert Decoding(num_speculative_tokens=word).llm_options() == {"num_speculative_tokens": window}


@pytest.mark.parametrize("word", ["0", "65", "-4", "4.0", "none", "", "\u0664", "1" * 5000])
def test_another_window_is_refused(word: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--num-speculative-tokens is '.*'; give auto, or a whole number from 1 to 64"
    ):
        Decoding(num_speculative_tokens=word)


@pytest.mark.parametrize("command", ["generate", "chat", "trace", "serve", "eval", "sweep"])
def test_every_command_that_takes_a_window_takes_auto(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"})
    assert re.search(r"--num-speculative-tokens +<int\|auto>", shown.stdout)


def test_defaults_told_in_the_help_are_the_engines() -> None:
    decoding, sampling = DecodingOptions(), SamplingParams()
    assert (decoding.remasking_strategy, decoding.confidence_threshold) == ("low_confidence_static", 0.9)
    assert decoding.draft_steps == 1
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p) == (256, 0.0, 0, 1.0)
