"""From a folder or a hub name to a model that runs, with its configuration and tokenizer."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import torch

from simsd.errors import ConfigError, ModelError, PairError
from simsd.models import registry
from simsd.models.available import is_there
from simsd.models.config import ModelConfig
from simsd.models.fingerprint import fingerprint
from simsd.models.parts import Parts
from simsd.models.protocol import Model
from simsd.models.shard import WHOLE, Shard
from simsd.models.tokenizer import Tokenizer
from simsd.models.transformer import Transformer
from simsd.models.weights import WeightFiles

# The checkpoints that come with the package: name -> folder under simsd/assets.
EMBEDDED: Mapping[str, str] = MappingProxyType({"tiny": "tiny/target", "tiny-draft": "tiny/draft"})
_EMBEDDED_BLOCK_LENGTHS = (4, 8, 16)  # the embedded pair was trained for all of these

_CONFIG = ("config.json", "generation_config.json")
_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer*", "merges.txt")
_DTYPES = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
)
_SMALL = 1 << 30  # bytes of weights up to which "auto" means float32 on a CPU


M_co = TypeVar("M_co", bound=Model, covariant=True)


@dataclass(frozen=True)
class LoadedModel(Generic[M_co]):
    """A model ready to run. `config` has block length and MASK id filled in.

    fingerprint: of the files it was read from, as they were then; None of a module that was loaded elsewhere.
    """

    model: M_co
    config: ModelConfig
    tokenizer: Tokenizer
    name: str
    fingerprint: str | None = None

    def doubtful(self, block_length: int) -> str | None:
        """Why text of this block length would be worse than it could be; None where nothing speaks against it."""
        trained = self.config.trained_block_lengths
        if not trained or block_length in trained:
            return None
        lengths = ", ".join(map(str, trained))
        return (
            f"{self.name} was trained for block length {lengths}, not {block_length}: expect worse text; "
            f"use block_length={trained[0]}"
        )


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been looked at, and whose weights can be read: all of them, or those of one rank.

    fingerprint: of its files, as they were looked at.
    """

    folder: Path
    config: ModelConfig
    dtype: torch.dtype
    fingerprint: str
    int8: bool = False

    def build(
        self, device: torch.device, shard: Shard = WHOLE, on_read: Callable[[], None] = lambda: None
    ) -> Transformer:
        """Reads the weights; on_read as of `WeightFiles`. Raises: ModelError."""
        files = WeightFiles(self.folder, on_read)
        parts = Parts(files, self.dtype, device, self.config.rms_norm_eps, shard, self.int8)
        with torch.inference_mode():
            return registry.family(self.config.model_type).build(self.config, parts)


class Load(Protocol):
    """How a named checkpoint is loaded: `load` is the ordinary way."""

    def __call__(
        self,
        model: str | Path,
        dtype: str,
        device: str,
        mask_token_id: int | None,
        block_length: int | None,
        int8: bool,
    ) -> LoadedModel[Any]: ...


def load(
    model: str | Path,
    dtype: str = "auto",
    device: str | torch.device = "auto",
    mask_token_id: int | None = None,
    block_length: int | None = None,
    int8: bool = False,
) -> LoadedModel[Transformer]:
    """Loads a checkpoint from a folder, the hub or the package itself; arguments and errors are those of `look_at`."""
    target = pick_device(device)
    checkpoint, tokenizer = look_at(model, dtype, target, mask_token_id, block_length, int8)
    built = checkpoint.build(target)
    return LoadedModel(built, checkpoint.config, tokenizer, str(model), checkpoint.fingerprint)


def look_at(
    model: str | Path,
    dtype: str,
    device: torch.device,
    mask_token_id: int | None = None,
    block_length: int | None = None,
    int8: bool = False,
) -> tuple[Checkpoint, Tokenizer]:
    """Finds a checkpoint and settles how it is to run, before any weight is read.

    Args:
        model: a folder, a hub name (`owner/name`; the local hub cache is honoured), or a name in `EMBEDDED`.
        dtype: "float32", "bfloat16", "float16", "float64", or "auto": the checkpoint's own dtype on CUDA; on a CPU
            float32 for less than 1 GiB of weights, else bfloat16.
        device: where it will run.
        mask_token_id, block_length: override the checkpoint's (method section 1).
        int8: linear layers get int8 weights (`quantized.Int8Linear`).

    Raises:
        ModelError: the checkpoint is not found, incomplete or not supported.
    """
    folder = resolve(model)
    files_then = fingerprint(folder, _PATTERNS)
    config = read_config(model, folder, mask_token_id, block_length)
    chosen = pick_dtype(dtype, device, config, WeightFiles(folder).nbytes)
    tokenizer = Tokenizer.from_folder(folder, config.mask_token_id)
    return Checkpoint(folder, config, chosen, files_then, int8), tokenizer


def read_config(
    model: str | Path, folder: Path, mask_token_id: int | None = None, block_length: int | None = None
) -> ModelConfig:
    """The configuration of the checkpoint `model`, which lies in `folder`, as it is loaded; no weights are read.

    Raises: ModelError.
    """
    name = str(model)
    own: dict[str, Any] = {"mask_token_id": mask_token_id, "block_length": block_length}
    config = ModelConfig.from_folder(folder, Path(name).name, **own)
    if name in EMBEDDED:
        config = replace(config, trained_block_lengths=_EMBEDDED_BLOCK_LENGTHS)
    return registry.with_defaults(config)


def resolve(model: str | Path, *, weights: bool = True) -> Path:
    """The folder that holds a checkpoint; a hub name is downloaded, or found in the local hub cache.

    weights: False downloads the configuration alone.

    Raises:
        ModelError: there is no such folder, or the hub does not have it or cannot be reached.
    """
    if not isinstance(model, str | Path) or not str(model):
        raise ModelError(f"model is {model!r}; give a folder or a hub name.")
    name = str(model)
    if name in EMBEDDED:
        return embedded(name)
    try:
        folder = Path(model).expanduser()
    except RuntimeError as error:
        raise ModelError(f"there is no checkpoint folder {name!r}.") from error
    if folder.is_dir():
        return folder
    if isinstance(model, Path) or folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"there is no checkpoint folder {name!r}.")
    return _download(name, _PATTERNS if weights else _CONFIG)


def embedded(name: str) -> Path:
    """The folder of a checkpoint that comes with the package."""
    folder = Path(str(importlib.resources.files("simsd"))) / "assets" / EMBEDDED[name]
    if not folder.is_dir():
        raise ModelError(f"the embedded model {name!r} is missing from this installation; install simsd again.")
    return folder


def _download(name: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name!r} is neither a folder nor in the local hub cache, and the hub cannot be reached; "
            "check the name, or download it first."
        ) from error
    except (HFValidationError, HfHubHTTPError) as error:
        raise ModelError(
            f"{name!r} is neither a folder nor a model on the hub that you may read; "
            "check the name, and log in if it is private."
        ) from error
    except OSError as error:
        raise ModelError(f"{name!r} could not be downloaded: {error}.") from error


def pick_device(device: str | torch.device, *, here: bool = True) -> torch.device:
    """The device for "auto", "cpu", "cuda" or "cuda:1"; ModelError if it is not there, unless `here` is False."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"device {device!r} is unknown; use auto, cpu, cuda or cuda:0.") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:0.")
    if here and not is_there(chosen):
        raise ModelError(f"device {device!r} is not there: {torch.cuda.device_count()} CUDA devices; use device='cpu'.")
    return chosen


def rank_devices(device: torch.device, ranks: int, *, here: bool = True) -> tuple[torch.device, ...]:
    """Where each rank of a model runs: on a GPU of its own, or all of them on the CPU.

    Raises:
        ConfigError: there are fewer GPUs than ranks, unless `here` is False, or one GPU is named for several ranks.
    """
    if ranks == 1 or device.type == "cpu":
        return (device,) * ranks
    if device.index is not None:
        raise ConfigError(
            f"tensor_parallel_size is {ranks}, but device {str(device)!r} is one GPU; give device='cuda', and choose "
            "GPUs with CUDA_VISIBLE_DEVICES"
        )
    if (there := torch.cuda.device_count()) < ranks and here:
        raise ConfigError(
            f"tensor_parallel_size is {ranks}, but there are {there} CUDA devices; choose fewer, or device='cpu'"
        )
    return tuple(torch.device("cuda", rank) for rank in range(ranks))


def pick_dtype(dtype: str, device: torch.device, config: ModelConfig, nbytes: int) -> torch.dtype:
    """The dtype to compute in; `load` says what "auto" means. `nbytes` is the size of the stored weights."""
    if dtype == "auto":
        if device.type == "cpu":
            return torch.float32 if nbytes < _SMALL else torch.bfloat16
        dtype = config.torch_dtype or "bfloat16"
    if dtype not in _DTYPES:
        raise ModelError(f"dtype {dtype!r} is not supported; use auto or one of {', '.join(_DTYPES)}.")
    return _DTYPES[dtype]


def check_pair(target: LoadedModel[Any], draft: LoadedModel[Any]) -> None:
    """Makes sure that the draft model's tokens are the target's.

    Raises:
        PairError: they differ in vocabulary size, MASK id or tokenizer; the message gives both values.
    """
    check_configs((target.name, target.config), (draft.name, draft.config))
    _same(target.name, draft.name, "tokenizers", target.tokenizer.fingerprint, draft.tokenizer.fingerprint)


def check_configs(target: tuple[str, ModelConfig], draft: tuple[str, ModelConfig]) -> None:
    """What configurations alone tell of that, each with its model's name.

    Raises: PairError, as `check_pair`.
    """
    (ours, own), (theirs, other) = target, draft
    _same(ours, theirs, "vocabulary sizes", own.vocab_size, other.vocab_size)
    _same(ours, theirs, "MASK ids", own.mask_token_id, other.mask_token_id)


def _same(target: str, draft: str, what: str, ours: Any, theirs: Any) -> None:
    if ours != theirs:
        raise PairError(
            f"draft model {draft} cannot draft for {target}: their {what} differ ({theirs} and {ours}); "
            "use a draft model of the same family."
        )
