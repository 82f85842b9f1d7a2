"""`LLM(draft_ahead=True)`: the same text, drafts made beside the target, and a thread that is nobody's burden."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from simsd import LLM, SamplingParams
from tests.tiny import folder_of, prompt_of

PARAMS = SamplingParams(max_tokens=30, seed=1)
PROMPTS = [prompt_of(length, length) for length in (9, 14, 3, 21)]


@pytest.fixture(scope="module")
def llm() -> LLM:
    target, draft = folder_of(2, 0, 0.0), folder_of(2, 0, 0.005)
    return LLM(target, draft_model=draft, dtype="float64", device="cpu", draft_ahead=True, max_num_seqs=2)


def texts(llm: LLM) -> list[list[int]]:
    return [done.token_ids for done in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("options", [{}, {"drafter": "model"}, {"num_speculative_tokens": 8}], ids=repr)
def test_the_text_is_ordinary_decodings(llm, options):
    expected = texts(llm.with_options(method="none"))
    assert texts(llm.with_options(**options)) == expected
    assert texts(llm.with_options(draft_ahead=False, **options)) == expected


def test_it_is_counted_and_told(llm):
    own = llm.with_options(num_speculative_tokens=8, drafter="model", max_num_seqs=1)
    done = own.generate(PROMPTS, PARAMS)
    assert own.totals.drafts_ahead == sum(one.stats.drafts_ahead for one in done) > 0
    assert own.totals.to_dict()["drafts_ahead"] == own.totals.drafts_ahead
    assert own.loaded["draft_ahead"] == "on"
    without = own.with_options(draft_ahead=False)
    texts(without)
    assert (without.totals.drafts_ahead, without.loaded["draft_ahead"]) == (0, "off")
    assert "draft_ahead" not in own.with_options(draft_ahead=None).loaded


def test_on_one_device_nothing_is_drafted_ahead_unasked(llm):
    own = llm.with_options(draft_ahead=None, num_speculative_tokens=8)
    texts(own)
    assert own.totals.drafted_tokens > own.totals.drafts_ahead == 0


def test_several_threads_may_use_it(llm):
    own = llm.with_options(num_speculative_tokens=8)
    expected = texts(own)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda prompt: own.generate(prompt, PARAMS)[0].token_ids, PROMPTS))
    assert found == expected


def test_a_stream_that_is_left_early_leaves_the_others_alone(llm):
    own = llm.with_options(num_speculative_tokens=8)
    expected = texts(own)
    for _ in own.stream(PROMPTS[0], PARAMS):
        break
    assert texts(own) == expected


def test_closing_ends_the_thread_and_using_it_again_is_no_mistake(llm):
    before = set(threading.enumerate())
    own = llm.with_options(num_speculative_tokens=8)
    expected = texts(own)
    (started,) = set(threading.enumerate()) - before
    own.close()
    assert not started.is_alive()
    assert texts(own) == expected
    own.close()


def test_a_program_ends_while_a_draft_is_being_made():
    code = f"""
from simsd import LLM, SamplingParams
llm = LLM({str(folder_of(2, 0, 0.0))!r}, draft_model={str(folder_of(2, 0, 0.005))!r}, device="cpu", draft_ahead=True)
generation = llm.with_options(num_speculative_tokens=8).open({PROMPTS[0]}, SamplingParams(max_tokens=30))
generation.start()
generation._scheduler.step()
print("stepped")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "stepped\n", "")
