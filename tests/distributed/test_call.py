"""Arguments arrive as they were sent, tensors of any dtype and shape among them."""

from __future__ import annotations

import torch

from simsd.distributed.call import Call, TensorSpec, pack


def test_arguments_come_back_from_one_buffer():
    arguments = (
        3,
        torch.arange(6).view(2, 3).T,
        None,
        torch.tensor([[[True, False, True]]]),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 4),
        torch.arange(5, dtype=torch.float64) / 7,
        "text",
    )
    call = Call.of("forward", arguments)
    assert call.arguments[1] == TensorSpec((3, 2), torch.int64)
    buffer = pack(arguments)
    assert (buffer.dtype, buffer.numel()) == (torch.uint8, call.nbytes)
    assert call.nbytes % 8 == 0
    for found, sent in zip(call.filled(buffer), arguments, strict=True):
        if isinstance(sent, torch.Tensor):
            assert found.dtype == sent.dtype
            assert torch.equal(found, sent)
        else:
            assert found is sent


def test_a_call_without_tensors_needs_no_buffer():
    call = Call.of("move", (1, 2))
    assert (call.specs, call.nbytes) == ([], 0)
