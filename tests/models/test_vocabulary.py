"""Embedding and head, split by tokens, give what the whole ones do: to the last bit."""

from __future__ import annotations

import pytest
import torch

from simsd.models.linear import Linear
from simsd.models.shard import Shard, count
from simsd.models.vocabulary import Embedding, SplitHead
from tests.models.ranks import Team

V, H = 11, 6


@pytest.mark.parametrize("size", [2, 3, 4])
def test_vectors_of_all_ranks_add_up_to_the_tokens_vectors(size: int):
    weight = torch.randn(V, H, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 10, 5], [7, 3, 3]])

    def look_up(shard: Shard) -> torch.Tensor:
        own = shard.span(V)
        return Embedding(weight[own], own.start, shard.ranks)(ids)

    for found in Team(size).run(look_up):
        assert torch.equal(found, weight[ids])


def test_a_vector_that_is_not_a_number_stays_with_its_own_token():
    weight = torch.ones(V, H)
    weight[5] = torch.nan  # the last of the first rank
    found = Team(2).run(lambda s: Embedding(weight[s.span(V)], s.span(V).start, s.ranks)(torch.tensor([4, 5, 6, 10])))[
        1
    ]
    assert found.isnan().any(-1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("size", [2, 4])
def test_logits_are_gathered_on_rank_0(size: int):
    weight = torch.randn(V, H, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(2, 3, H, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    counts = [count(Shard(rank, size).span(V)) for rank in range(size)]

    def head(shard: Shard) -> torch.Tensor:
        own = weight[shard.span(V)]
        filled = torch.cat((own, own.new_zeros(max(counts) - len(own), H)))
        return SplitHead(Linear(filled), counts, shard.ranks)(hidden)

    first, *others = Team(size).run(head)
    torch.testing.assert_close(first, hidden @ weight.T, rtol=1e-12, atol=1e-12)
    assert all(logits.shape == (2, 3, max(counts)) for logits in others)
