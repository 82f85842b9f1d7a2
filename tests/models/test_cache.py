"""The cache: writes land where they should and nowhere else; growing, slicing and moving keep what is stored."""

from __future__ import annotations

import pytest
import torch

from simsd.models.cache import KVCache


def filled(sequences: int = 3, capacity: int = 10) -> KVCache:
    cache = KVCache(2, sequences, 2, capacity, 4)
    cache.buffer.copy_(torch.arange(cache.buffer.numel()).view(cache.buffer.shape))
    return cache


def rows(n: int, r: int, offset: float = 0.0) -> torch.Tensor:
    return -1.0 - offset - torch.arange(n * 2 * r * 4, dtype=torch.float32).view(n, 2, r, 4)


def test_starts_as_zeros_so_that_hidden_slots_cannot_bring_in_nan():
    cache = KVCache(2, 3, 2, 10, 4, torch.bfloat16)
    assert cache.buffer.shape == (2, 2, 3, 2, 10, 4)
    assert cache.buffer.eq(0).all()
    assert cache.nbytes == 2 * 2 * 3 * 2 * 10 * 4 * 2


def test_write_at_one_slot_for_all_changes_only_those_slots():
    cache, before = filled(), filled()
    k, v = rows(3, 2), rows(3, 2, 1000.0)
    cache.write(1, k, v, 5)
    keys, values = cache.read(1, 10)
    assert torch.equal(keys[:, :, 5:7], k) and torch.equal(values[:, :, 5:7], v)
    cache.buffer[1, :, :, :, 5:7] = before.buffer[1, :, :, :, 5:7]
    assert torch.equal(cache.buffer, before.buffer)


def test_write_at_a_slot_for_each_row():
    cache, before = filled(), filled()
    k, v = rows(3, 2), rows(3, 2, 1000.0)
    slots = torch.tensor([[0, 1], [9, 4], [3, 8]])
    cache.write(0, k, v, slots)
    for n in range(3):
        for r in range(2):
            assert torch.equal(cache.buffer[0, 0, n, :, slots[n, r]], k[n, :, r])
            assert torch.equal(cache.buffer[0, 1, n, :, slots[n, r]], v[n, :, r])
    changed = (cache.buffer != before.buffer).sum()
    assert changed == k.numel() + v.numel()


def test_views_are_the_same_slots_of_every_layer():
    cache = filled()
    for layer, (k, v) in enumerate(cache.views(2, 5)):
        assert k.data_ptr() == cache.buffer[layer, 0, :, :, 2:].data_ptr()
        assert torch.equal(k, cache.buffer[layer, 0, :, :, 2:7])
        assert torch.equal(v, cache.buffer[layer, 1, :, :, 2:7])


@pytest.mark.parametrize("slots", [4, torch.tensor([[4, 5]])])
def test_slice_writes_through_to_its_own_sequences(slots: int | torch.Tensor):
    cache, before = filled(), filled()
    part = cache.slice(1, 1)
    assert part.sequences == 1 and part.nbytes == cache.nbytes // 3
    part.write(0, rows(1, 2), rows(1, 2), slots)
    assert torch.equal(cache.buffer[0, 0, 1, :, 4:6], rows(1, 2)[0])
    for other in (0, 2):
        assert torch.equal(cache.buffer[:, :, other], before.buffer[:, :, other])


def test_growing_keeps_what_is_stored_and_zeroes_the_rest():
    cache, before = filled(), filled()
    cache.grow(16)
    cache.grow_sequences(5)
    assert (cache.sequences, cache.capacity) == (5, 16)
    assert torch.equal(cache.buffer[:, :, :3, :, :10], before.buffer)
    assert cache.buffer[:, :, 3:].eq(0).all() and cache.buffer[..., 10:, :].eq(0).all()
    cache.write(0, rows(5, 1), rows(5, 1), 15)
    assert torch.equal(cache.read(0, 16)[0][:, :, 15:], rows(5, 1))


def test_growing_never_shrinks():
    cache = filled()
    buffer = cache.buffer
    cache.grow(4)
    cache.grow_sequences(1)
    assert cache.buffer is buffer


@pytest.mark.parametrize("count", [0, 3, 10])
def test_copy_takes_the_first_slots_in_all_layers(count: int):
    cache, expected = filled(), filled()
    cache.copy(2, 0, count)
    expected.buffer[:, :, 0, :, :count] = filled().buffer[:, :, 2, :, :count]
    assert torch.equal(cache.buffer, expected.buffer)


@pytest.mark.parametrize("count", [0, 3, 10])
def test_swap_exchanges_the_first_slots_in_all_layers(count: int):
    cache, expected = filled(), filled()
    cache.swap(2, 0, count)
    expected.buffer[:, :, 0, :, :count] = filled().buffer[:, :, 2, :, :count]
    expected.buffer[:, :, 2, :, :count] = filled().buffer[:, :, 0, :, :count]
    assert torch.equal(cache.buffer, expected.buffer)


@pytest.mark.parametrize("first", [0, 4, 10])
def test_clear_leaves_what_is_in_front(first: int):
    cache, expected = filled(), filled()
    cache.clear(1, first)
    expected.buffer[:, :, 1, :, first:] = 0
    assert torch.equal(cache.buffer, expected.buffer)
