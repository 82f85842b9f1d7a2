"""Recorded rounds in an engine at work: batches that change, caches that grow, one look at the device a round."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import simsd.llm
from simsd import LLM, ConfigError
from simsd.drafters.base import DraftRequest
from simsd.drafters.model import ModelDrafter
from simsd.engine import decoder as decoder_module
from simsd.engine.auto import Auto
from simsd.engine.batch import Round, Rules
from simsd.engine.capture import Watch
from simsd.engine.costs import CostTable, measure
from simsd.engine.decoder import Decoder
from simsd.engine.graphs import Graphs
from simsd.engine.options import DecodingOptions, SamplingParams
from simsd.engine.request import Sequence
from simsd.engine.runner import Runner
from tests.capture import graphs, nobody_reads
from tests.core.cases import MASK as MASK_THERE
from tests.drafters.test_elsewhere import model_there
from tests.drafting import make_drafter
from tests.integration.test_families import ASKED, llm
from tests.tiny import Request, decode, engine, prompt_of, runner, submit, tiny_model

SIZE = 4
TABLE = CostTable((4, 64), (0.001, 0.002))
MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "logprobs": True},
    {"remasking_strategy": "low_confidence_dynamic", "confidence_threshold": 0.35},
    {"temperature": 1.0, "top_k": 5, "stop": "Q"},
    {"remasking_strategy": "random", "denoising_steps": 3},
    {"logprobs": True, "stop": ("AB", "Z")},
]


def asked() -> list[Request]:
    """Of different lengths, samplers and schedules; some end early."""
    lengths = [(3, 40), (30, 9), (8, 60), (17, 25), (1, 33), (22, 48)]
    made = []
    for seed, ((prompt, tokens), how) in enumerate(zip(lengths, MIXED, strict=True)):
        params = SamplingParams(max_tokens=tokens, seed=seed, **how)
        made.append(Request(prompt_of(prompt, seed), params, frozenset({7}) if seed == 2 else frozenset()))
    return made


def told(sequence: Sequence) -> tuple[Any, ...]:
    return sequence.token_ids, sequence.token_steps, sequence.finish_reason, sequence.text_end


@pytest.mark.parametrize(
    ("method", "drafter"), [("exact", "model"), ("exact", "hybrid"), ("simsd", "model"), ("simsd", "lookup")]
)
def test_sequences_join_and_leave_while_the_cache_grows_and_lengths_change(method: str, drafter: str):
    def run(own: tuple[Graphs | None, Graphs | None]) -> list[Sequence]:
        source = make_drafter(drafter, SIZE, graphs=own[1])
        return decode(engine(tiny_model(), SIZE, source, method=method, max_num_seqs=3, graphs=own[0]), asked())

    own = graphs(), graphs()
    found, expected = run(own), run((None, None))
    assert [told(s) for s in found] == [told(s) for s in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-9)
    assert own[0].replays > 0


def test_what_was_cached_of_a_text_is_taken_over():
    def run(own: tuple[Graphs | None, Graphs | None]) -> tuple[list[Any], int]:
        scheduler = engine(tiny_model(), SIZE, make_drafter("model", SIZE, graphs=own[1]), graphs=own[0])
        first = decode(scheduler, [Request(prompt_of(21), SamplingParams(max_tokens=24))])[0]
        again = [Request(first.text_ids + prompt_of(3, n), SamplingParams(max_tokens=20)) for n in range(3)]
        return [told(s) for s in (first, *decode(scheduler, again))], scheduler.totals.cached_tokens

    own = graphs(), graphs()
    assert run(own) == run((None, None))
    assert own[0].replays > 0
    assert own[1].replays > 0


def test_a_cancelled_sequence_leaves_the_others_their_texts():
    requests = asked()[:3]
    scheduler = engine(tiny_model(), SIZE, make_drafter("hybrid", SIZE, graphs=graphs()), graphs=graphs())
    sequences = submit(scheduler, requests)
    for _ in range(4):
        scheduler.step()
    scheduler.cancel(sequences[0])
    while scheduler.busy:
        scheduler.step()
    alone = [decode(engine(tiny_model(), SIZE), [request])[0] for request in requests[1:]]
    assert [told(s) for s in sequences[1:]] == [told(s) for s in alone]


def test_a_growing_cache_drops_what_was_recorded():
    own = graphs(step=64)
    scheduler = engine(tiny_model(), SIZE, graphs=own)
    decode(scheduler, [Request(prompt_of(5), SamplingParams(max_tokens=32))])
    kept = len(own)
    assert kept > 0
    scheduler.target.reserve(1, 30)  # it has more
    assert len(own) == kept
    scheduler.target.reserve(1, 200)
    assert len(own) == 0
    request = Request(prompt_of(90), SamplingParams(max_tokens=32))
    expected = decode(engine(tiny_model(), SIZE), [request])[0]
    assert told(decode(scheduler, [request])[0]) == told(expected)
    assert len(own) > 0


def test_sequences_that_join_one_by_one_drop_what_was_recorded_a_few_times():
    own = graphs(step=64)
    scheduler = engine(tiny_model(), SIZE, max_num_seqs=9, graphs=own)
    scheduler.target.most_sequences = 9
    kept, dropped = [0], 0
    joining: list[Sequence] = []
    for n in range(9):
        joining += submit(scheduler, [Request(prompt_of(6, n), SamplingParams(max_tokens=50, seed=n))])
        for _ in range(3):
            scheduler.step()
            dropped += len(own) < kept[-1]
            kept.append(len(own))
    assert scheduler.target.cache.sequences == 9
    assert dropped <= 4  # for 2, 4, 8 and 9 places
    while scheduler.busy:
        scheduler.step()
    for n in (0, 3, 8):
        request = Request(prompt_of(6, n), SamplingParams(max_tokens=50, seed=n))
        assert told(joining[n]) == told(decode(engine(tiny_model(), SIZE), [request])[0])


@pytest.mark.parametrize("drafter", ["model", "hybrid", "self"])
def test_auto_chooses_before_the_round_and_learns_from_it(drafter: str):
    own, auto = graphs(step=256), Auto(lambda: TABLE, SIZE)
    source = make_drafter(drafter, SIZE, graphs=graphs(step=256))
    scheduler = engine(tiny_model(), SIZE, source, auto=auto, graphs=own)
    scheduler.target.reserve(2, 250)
    requests = [Request(prompt_of(6, n), SamplingParams(max_tokens=100, seed=n)) for n in range(2)]
    found = decode(scheduler, requests)
    ordinary = [decode(engine(tiny_model(), SIZE), [request])[0] for request in requests]
    assert [told(s) for s in found] == [told(s) for s in ordinary]
    assert own.replays > 0
    windows = [auto.batches(2).windows[True, 1], auto.batches(2).windows[False, 1]]
    assert any(window.known for window in windows)  # how often it drafts later on is up to the clock
    assert scheduler.totals.drafted_tokens > 0
    assert auto.foresee(2, False, 1) in (1, 2, 4, 8)


def test_what_auto_learns_is_what_it_would_have_asked():
    """One round after the prompt: the promises that come back with the verdict are the draft's own."""

    def first_round(own: tuple[Graphs | None, Graphs | None]) -> Auto:
        auto = Auto(lambda: TABLE, SIZE)
        scheduler = engine(tiny_model(), SIZE, make_drafter("model", SIZE, graphs=own[1]), auto=auto, graphs=own[0])
        submit(scheduler, [Request(prompt_of(8, n), SamplingParams(max_tokens=40, seed=n)) for n in range(2)])
        scheduler.step()
        return auto

    autos = (first_round(own) for own in ((graphs(), graphs()), (None, None)))
    found, expected = (auto.batches(2).windows[True, 1] for auto in autos)
    assert (found.seen, found.states.value) == (expected.seen, expected.states.value) == (1, expected.states.value)
    assert found.visits.value == pytest.approx(expected.visits.value, abs=1e-9)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what the host reads; nothing else may be read, in a round or outside."""
    sizes: list[int] = []
    read = Tensor.tolist  # also while others may not

    def count(numbers: Tensor) -> list[list[float]]:
        sizes.append(numbers.numel())
        return read(numbers)

    monkeypatch.setattr(decoder_module, "to_host", count)
    return sizes


@pytest.mark.parametrize("auto", [None, "auto"])
@pytest.mark.parametrize("drafter", ["model", "hybrid", "self"])
@pytest.mark.parametrize("method", ["none", "exact", "simsd", "exact-draft-order"])
def test_the_host_looks_once_a_round(method: str, drafter: str, auto: str | None, reads: list[int]):
    chooses = Auto(lambda: TABLE, SIZE) if auto and method == "exact" else None
    source = None if method == "none" else make_drafter(drafter, SIZE, graphs=graphs())
    scheduler = engine(tiny_model(), SIZE, source, method=method, auto=chooses, graphs=graphs())
    submit(scheduler, [Request(prompt_of(6, n), SamplingParams(max_tokens=12, temperature=n)) for n in range(2)])
    with nobody_reads():
        while scheduler.busy:
            scheduler.step()
    assert len(reads) == scheduler.totals.rounds


def test_a_trace_shows_the_same():
    def run(own: tuple[Graphs | None, Graphs | None]) -> list[Any]:
        scheduler = engine(tiny_model(), SIZE, make_drafter("model", SIZE, graphs=own[1]), trace=True, graphs=own[0])
        requests = [Request(prompt_of(5, n), SamplingParams(max_tokens=30, seed=n)) for n in range(2)]
        rounds = [one for sequence in decode(scheduler, requests) for one in sequence.trace]
        return [(one.before, one.drafted, one.verdict, one.after, one.layout.prefix_length) for one in rounds]

    own = graphs(step=64), graphs(step=64)
    assert run(own) == run((None, None))
    assert own[0].replays > 0


@pytest.mark.parametrize(
    ("method", "temperature"),
    [("none", 0.0), ("exact", 1.0), ("simsd", 0.0), ("simsd", 1.0), ("exact-draft-order", 1.0)],
)
def test_on_an_accelerator_no_operator_of_a_round_is_one_that_no_graph_can_hold(method: str, temperature: float):
    """The branches that are not the CPU's, with tensors that hold no numbers: a fake device takes part in no copy."""
    options = DecodingOptions(method=method, block_length=SIZE).resolve(True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        target, draft = (Runner(model_there(), MASK_THERE, SIZE, 256, graphs=graphs(after=100)) for _ in range(2))
        drafter = None if method == "none" else ModelDrafter(draft, SIZE, 2, target_first=method == "exact")
        auto = Auto(lambda: TABLE, SIZE) if options.adaptive else None
        decoder = Decoder(options, target, drafter, auto=auto)
        params = SamplingParams(temperature=temperature, top_k=3, logprobs=True).resolve(options, 0)
        sequences = [Sequence(n, [1] * (9 + 4 * n), params, frozenset(), SIZE, MASK_THERE) for n in range(2)]
        for sequence in sequences:
            sequence.stored, sequence.memory["draft_stored"] = 4, 0
        rules = Rules.of(sequences, target.model.device)

        def whole() -> None:
            now = Round.of(sequences, target)
            proposal = decoder._draft(sequences, now, rules, *decoder._window(sequences, now))
            asked = decoder._asked(now, proposal, rules)
            request = DraftRequest(
                now.state, 2, rules.sampler, rules.schedule, method == "exact", now.salt, sequences, now.steady
            )
            inputs = None if drafter is None else drafter._inputs(request)
            with Watch() as watch:
                decoder._verify(asked)
                if drafter is not None and inputs is not None:
                    drafter._draft(inputs)
            refused.append(watch.refused)

        refused: list[set[str]] = []
        whole()  # makes what is made once
        whole()
    assert refused[1] == set()


def test_costs_are_those_of_the_graphs():
    own = graphs()
    table = measure(runner(tiny_model(), SIZE, own))
    assert len(table.rows) > 1
    assert min(table.seconds) > 0
    assert (len(own), own.replays) == (0, 0)  # it has its own


@pytest.mark.parametrize("name", ["sdar_moe", "llada2_moe"])
def test_experts_that_look_at_values_run_as_they_are(name: str, monkeypatch, caplog):
    asked = [prompt_of(n, n) for n in (5, 8, 3)]
    expected = llm(name, "exact", num_speculative_tokens=8).generate(asked, ASKED)
    monkeypatch.setattr(simsd.llm, "graphs_for", lambda device: graphs())
    with caplog.at_level(logging.WARNING):
        found = llm(name, "exact", num_speculative_tokens=8).generate(asked, ASKED)
        llm(name, "exact").prepare()
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    names = [text.split(" runs without a CUDA graph: it uses aten._local_scalar_dense")[0] for text in caplog.messages]
    assert {"Decoder._verify", "_corner"} <= set(names) <= {"Decoder._verify", "_corner", "ModelDrafter._draft"}
    assert len(names) == len(set(names))


def test_an_llm_records_unless_it_is_told_not_to(monkeypatch):
    asked = [SamplingParams(max_tokens=24, seed=1), SamplingParams(max_tokens=24, temperature=0.8, seed=2)]
    plain = llm("sdar", "exact", num_speculative_tokens=8)
    assert plain._scheduler.target.graphs is None  # on a CPU
    monkeypatch.setattr(simsd.llm, "graphs_for", lambda device: graphs(step=64))
    graphed = llm("sdar", "exact", num_speculative_tokens=8)
    texts = [[c.token_ids for c in one.generate([prompt_of(5), prompt_of(9)], asked)] for one in (plain, graphed)]
    assert texts[0] == texts[1]
    own = graphed._scheduler.target.graphs
    assert own is not None
    assert own.replays > 0
    assert graphed.with_options(max_num_seqs=1)._scheduler.target.graphs is not own
    assert graphed.with_options(enforce_eager=True)._scheduler.target.graphs is None
    assert llm("sdar", "exact", enforce_eager=True)._scheduler.target.graphs is None
    with pytest.raises(ConfigError, match="enforce_eager is 'yes'; it must be True or False"):
        LLM(enforce_eager="yes")  # type: ignore[arg-type]
