"""A draft model on another device. PyTorch's fake tensors compute nothing, but know their device and mix no two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from simsd.core.draft import Draft
from simsd.core.tensors import tensors
from simsd.drafters.base import DraftRequest, NoMemory, Window
from simsd.drafters.elsewhere import Elsewhere, moved
from simsd.drafters.model import ModelDrafter
from simsd.engine.runner import Runner
from simsd.models import sdar
from simsd.models.config import ModelConfig
from simsd.models.parts import Parts
from simsd.models.transformer import Transformer
from simsd.models.weights import Piece, WeightFiles
from tests.core.cases import MASK, VOCAB, make_sampler
from tests.drafters.support import View
from tests.drafters.support import ask as ask_here
from tests.models.checkpoints import random_config

CPU, THERE = torch.device("cpu"), torch.device("meta")  # needs no hardware, and no one takes it for the CPU
SIZE = 4


class Blank(WeightFiles):
    """Weight files that hold nothing but shapes."""

    def __init__(self, config: ModelConfig) -> None:
        self.shapes, _ = sdar.weight_shapes(config)

    def check(self, expected: Any, optional: Any = None) -> None:
        return None

    def stored(self, piece: Piece) -> Tensor:
        return torch.empty(piece.shape(self.shapes[piece.name]))


class Crossings(TorchDispatchMode):
    """Counts tensors that are copied from one device to another."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].device != result.device:
            self.count += 1
        return result


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def model_there() -> Transformer:
    config = ModelConfig.from_dict(random_config(vocab_size=VOCAB, mask_token_id=MASK))
    return sdar.build(config, Parts(Blank(config), torch.bfloat16, THERE, config.rms_norm_eps))


def drafter(**options: Any) -> Elsewhere:
    model = ModelDrafter(Runner(model_there(), MASK, SIZE, 256), SIZE, **options)
    return Elsewhere(model, THERE)


def ask(*blocks: str, sequences: list[View], temperature: float = 0.0, **options: Any) -> DraftRequest:
    """A request of real tensors, on the CPU."""
    with _disable_current_modes():
        sampler = make_sampler(temperature, batch=len(blocks))
        return ask_here(*blocks, sequences=sequences, sampler=sampler, **options)


def admitted(source: Elsewhere, *lengths: int) -> list[View]:
    views = [View([1] * length) for length in lengths]
    for slot, view in enumerate(views):
        source.admit(view, slot)
    return views


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("by_draw", [True, False])
@pytest.mark.parametrize("draft_steps", [1, 3])
def test_the_model_drafts_there_and_the_draft_is_here(temperature: float, by_draw: bool, draft_steps: int):
    source = drafter(draft_steps=draft_steps)
    views = admitted(source, 8, 12)
    views[0].text_ids += [2] * 4  # a block has been finished since
    request = ask("a...", "....", sequences=views, window=2, by_draw=by_draw, temperature=temperature)
    draft = source.propose(request)
    assert draft.tokens.shape == (2, 2, SIZE)
    assert {tensor.device for tensor in tensors(draft)} == {CPU}
    assert (draft.proposal is not None) == (temperature > 0 and not by_draw)
    assert source.forwards == 2 * draft_steps


def test_tensors_cross_once_each_way():
    source = drafter()
    views = admitted(source, 8)
    request = ask("....", sequences=views, window=3)
    with Crossings() as crossings:
        draft = source.propose(request)
    from_the_host = 1  # what the drafter knows of the sequences, in one piece
    assert crossings.count == len(tensors(request)) + from_the_host + len(tensors(draft))


def test_the_targets_logits_are_read_there():
    source = drafter(target_first=True)
    views = admitted(source, 8, 8)
    assert source.wants_logits
    source.observe(views[0], torch.zeros(SIZE, VOCAB))
    source.observe(views[1], None)
    draft = source.propose(ask("a...", "....", sequences=views, window=2))
    assert {tensor.device for tensor in tensors(draft)} == {CPU}


def test_without_it_the_devices_would_mix():
    source = drafter()
    views = admitted(source, 8)
    with pytest.raises(RuntimeError, match="same device"):
        source.drafter.propose(ask("....", sequences=views))


def test_places_are_moved_there():
    source = drafter()
    one, other = admitted(source, 8, 4)
    source.leave(one, 0, other, 1)
    source.drafter.propose(moved(ask("....", sequences=[View([1] * 4, {"draft_stored": 4})]), THERE))


def test_what_is_no_tensor_stays():
    request = ask("....", sequences=[View([1] * 4)], window=2)
    there = moved(request, THERE)
    assert there.sequences is request.sequences
    assert (there.blocks, there.by_draw, there.state.mask_id) == (2, True, MASK)
    assert there.schedule.present == request.schedule.present
    assert {tensor.device for tensor in tensors(there)} == {THERE}
    assert moved(None, THERE) is None


def test_what_is_expected_crosses_before_the_target_runs():
    """A copy that is queued behind the target's forward would wait for it, and the draft model with it."""
    told: list[tuple[Tensor, list[int], int]] = []

    class Told(NoMemory):
        ahead = 7

        def propose(self, request: DraftRequest) -> Draft:
            raise NotImplementedError

        def expect(self, reached: Callable[[], Tensor], left: Sequence[int], window: Window) -> None:
            told.append((reached(), list(left), window(3)))

    source = Elsewhere(Told(), THERE)
    source.expect(lambda: torch.ones(2), [5, 6], lambda fewest: fewest + 1)
    (reached, left, blocks) = told[0]
    assert (reached.device, left, blocks) == (THERE, [5, 6], 4)
    assert source.ahead == 7
