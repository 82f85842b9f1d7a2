"""The compiled kernels as functions of tensors."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from ctypes import c_char_p, c_double, c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from simsd.native import build
from simsd.native.layer import done

SWITCH = "SIMSD_NATIVE"  # in the environment
OFF = ("0", "false", "no", "off")
SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}

log = logging.getLogger("simsd")


@functools.cache
def kernels() -> Kernels | None:
    """The kernels for this CPU, or None where they cannot be compiled or loaded, or are not wanted.

    Compiling, and why there are none though the CPU could run them, is told by the logger `simsd`, as a warning.
    """
    if os.environ.get(SWITCH, "").lower() in OFF or not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return None
    try:
        return loaded()
    except build.PlatformError as error:
        log.info("without CPU kernels: %s", error)
    except (build.BuildError, OSError) as error:
        log.warning("without CPU kernels, more slowly (%s=0 says that it is meant): %s", SWITCH, error)
    return None


def loaded(march: str = "native") -> Kernels:
    """Raises: BuildError, OSError."""
    with build.library(march) as path:
        return Kernels(path)


class Kernels:
    """Functions of contiguous tensors on the CPU, in float32 or bfloat16, by PyTorch's number of threads."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError if it cannot be loaded here."""
        library = ctypes.CDLL(str(path))
        self._packed = _functions(library, "packed", [c_long, c_long], c_long)
        self._pack = _functions(library, "pack", [c_void_p, c_void_p, c_long, c_long, c_int], None)
        self._product = _functions(library, "product", [c_void_p] * 4 + [c_long] * 3 + [c_int], c_int)
        self._grouped = _functions(
            library, "grouped", [c_void_p] * 3 + [c_long, c_void_p, c_long, c_long, c_int], c_int
        )
        vectors = _functions(library, "vectors", [], c_char_p)
        self.vectors = {dtype: name().decode() for dtype, name in vectors.items()}  # what of the CPU they use
        self._kept = library.simsd_kept
        self._kept.restype = c_long
        self._release = library.simsd_release
        self._release.restype = None
        self._norm = _functions(library, "norm", [c_void_p] * 2 + [c_double, c_long, c_long, c_void_p, c_int], None)
        self._gate = _functions(library, "gate", [c_void_p, c_long, c_long, c_void_p, c_int], None)
        self.attention = _functions(library, "attention", [c_void_p] * 6, c_int)
        self.mlp = _functions(library, "mlp", [c_void_p] * 3 + [c_long, c_int], c_int)

    @property
    def kept_bytes(self) -> int:
        """What the threads keep between calls for intermediate results."""
        return self._kept()

    def release(self) -> None:
        """Gives back what the calling thread keeps."""
        self._release()

    def packed_size(self, outputs: int, inputs: int, dtype: torch.dtype) -> int:
        """Numbers of a packed weight."""
        return self._packed[dtype](outputs, inputs)

    def pack(self, weight: Tensor, to: Tensor | None = None) -> Tensor:
        """weight `[out, in]` in the order in which `product` reads it; to: where, of `packed_size` numbers."""
        weight = weight.contiguous()
        n, k = weight.shape
        packed = weight.new_empty(self.packed_size(n, k, weight.dtype)) if to is None else to
        self._pack[weight.dtype](weight.data_ptr(), packed.data_ptr(), n, k, torch.get_num_threads())
        return packed

    def product(self, x: Tensor, packed: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
        """x W^T + b for x `[..., in]` and a packed weight, summed in float32: `[..., out]`, in x's dtype.

        A row comes out the same to the bit, whatever rows stand beside it.
        """
        x = x.contiguous()
        inputs = x.shape[-1]
        y = x.new_empty(*x.shape[:-1], outputs)
        failed = self._product[x.dtype](
            x.data_ptr(),
            packed.data_ptr(),
            None if bias is None else bias.data_ptr(),
            y.data_ptr(),
            x.numel() // inputs,
            outputs,
            inputs,
            torch.get_num_threads(),
        )
        done(failed)
        return y

    def norm(self, x: Tensor, scaled: Tensor, eps: float) -> Tensor:
        """w x / sqrt(mean(x^2) + eps) over the last dimension D; scaled: `[D]` float32, w times sqrt(D)."""
        x = x.contiguous()
        y, size = torch.empty_like(x), x.shape[-1]
        rows, threads = x.numel() // size, torch.get_num_threads()
        self._norm[x.dtype](x.data_ptr(), scaled.data_ptr(), eps, rows, size, y.data_ptr(), threads)
        return y

    def gate(self, x: Tensor) -> Tensor:
        """silu(gate) * up for x `[M, 2 * I]`, the gate first: `[M, I]`."""
        x = x.contiguous()
        rows, inner = len(x), x.shape[1] // 2
        y = x.new_empty(rows, inner)
        self._gate[x.dtype](x.data_ptr(), rows, inner, y.data_ptr(), torch.get_num_threads())
        return y

    def grouped(self, x: Tensor, packed: Tensor, ends: Tensor, outputs: int) -> Tensor:
        """As `product`, of x `[M, in]` with a weight for each group of rows.

        packed: `[G, numbers]`. ends: `[G]` int64, the first row behind each group. Behind the last one the result is
        whatever the memory held.
        """
        x, ends = x.contiguous(), ends.contiguous()
        rows, inputs = x.shape
        y = x.new_empty(rows, outputs)
        done(
            self._grouped[x.dtype](
                x.data_ptr(),
                packed.data_ptr(),
                ends.data_ptr(),
                len(packed),
                y.data_ptr(),
                outputs,
                inputs,
                torch.get_num_threads(),
            )
        )
        return y


def _functions(library: ctypes.CDLL, name: str, arguments: list[type], result: type | None) -> dict:
    """The kernel of this name for each dtype."""
    found = {}
    for dtype, suffix in SUFFIX.items():
        function = getattr(library, f"simsd_{name}_{suffix}")
        function.argtypes, function.restype = arguments, result
        found[dtype] = function
    return found
