"""`simsd serve`: the OpenAI-compatible server."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simsd.cli import cluster, common
from simsd.cli.options import Decoding, decoding_options
from simsd.errors import ConfigError

if TYPE_CHECKING:
    from simsd.llm import LLM
    from simsd.serving.settings import ServerSettings

FORMATS = ("text", "json")
# ports that no system gives to whoever asks for any, as Ray's own processes do, before the replicas listen; nor Ray
NOT_HANDED_OUT = range(20000, 32768)


def _option(name: str, text: str, panel: str = "Server", **more: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, **more)


def _of_many(name: str, text: str, **more: Any) -> Any:
    return _option(name, text, panel="Many replicas", show_default=False, **more)


@decoding_options(
    only=(
        *("draft_model", "mask_token_id", "dtype", "device", "draft_device", "draft_ahead", "quantize"),
        *("tensor_parallel_size", "enforce_eager", "threads"),
        *("method", "layout", "acceptance", "drafter", "states", "num_speculative_tokens", "draft_steps"),
        *("block_length", "denoising_steps", "remasking_strategy", "confidence_threshold", "eb_threshold"),
        *("max_tokens", "temperature", "top_k", "top_p", "seed", "stop"),
    )
)
def serve(
    *,
    options: Decoding,
    model: Annotated[
        str | None,
        typer.Argument(help="Target model: a folder or a hub name. Default: the embedded pair.", show_default=False),
    ] = None,
    host: Annotated[str, _option("--host", "Address to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, _option("--port", "Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None, _option("--api-key", "Key that clients must send.", envvar="SIMSD_API_KEY", show_default=False)
    ] = None,
    served_model_name: Annotated[
        str | None, _option("--served-model-name", "Name that clients ask for. Default: MODEL.", show_default=False)
    ] = None,
    max_num_seqs: Annotated[int, _option("--max-num-seqs", "Most sequences decoded side by side.")] = 16,
    prefix_caching: Annotated[
        bool, _option("--prefix-caching/--no-prefix-caching", "Reuse what is cached of a prompt's beginning.")
    ] = True,
    max_model_len: Annotated[
        int | None, _option("--max-model-len", "Most tokens of prompt and answer.", show_default=False)
    ] = None,
    max_waiting: Annotated[int, _option("--max-waiting", "Most requests in the queue; then clients get 429.")] = 256,
    max_body_bytes: Annotated[int, _option("--max-body-bytes", "Longest body of a request.")] = 2**20,
    request_timeout: Annotated[float, _option("--request-timeout", "Seconds for a whole request.")] = 600.0,
    shutdown_timeout: Annotated[
        float, _option("--shutdown-timeout", "Seconds that running requests get to finish at the end.")
    ] = 30.0,
    allow_origin: Annotated[
        list[str] | None,
        _option("--allow-origin", "Web origin that browsers may call from; may be repeated.", show_default=False),
    ] = None,
    log_format: Annotated[str, _option("--log-format", "text or json, a line each on standard error.")] = "text",
    ray: Annotated[bool, _of_many("--ray", "Serve with replicas on a Ray cluster.")] = False,
    ray_address: Annotated[
        str | None, _of_many("--ray-address", "A cluster that runs, auto for the one here. Default: one is started.")
    ] = None,
    min_replicas: Annotated[int | None, _of_many("--min-replicas", "Fewest replicas. Default: 1.")] = None,
    max_replicas: Annotated[int | None, _of_many("--max-replicas", "Most replicas. Default: the fewest.")] = None,
    target_ongoing_requests: Annotated[
        float | None,
        _of_many("--target-ongoing-requests", "Requests a replica that decide on the number. Default: its places."),
    ] = None,
) -> None:
    """Serve a model to OpenAI clients. The decoding and sampling flags are the defaults of requests."""
    if log_format not in FORMATS:
        raise ConfigError(f"--log-format is {log_format!r}; choose one of {', '.join(FORMATS)}.")
    fleet = cluster.fleet(ray, ray_address, min_replicas, max_replicas, target_ongoing_requests)
    settings_of = _settings_class()
    defaults = options.sampling_params()
    settings = settings_of(
        model_name=served_model_name or model or "tiny",
        api_key=api_key,
        max_waiting=max_waiting,
        max_body_bytes=max_body_bytes,
        request_timeout=request_timeout,
        shutdown_timeout=shutdown_timeout,
        allow_origins=allow_origin or (),
        defaults=defaults,
        max_tokens=options.max_tokens,
    )
    sizes = {"max_num_seqs": max_num_seqs, "max_model_len": max_model_len}
    if fleet is not None:
        plan = cluster.plan(options, settings, log_format, model=model, prefix_caching=prefix_caching, **sizes)
        cluster.serve(plan, fleet, host, _free_port(host, port, ray_address), ray_address)
        return
    with _listen(host, port) as listener:  # before the model is loaded, which may take minutes
        llm = common.open_llm(options, settled=False, model=model, prefix_caching=prefix_caching, **sizes)
        _run(llm, settings, listener, log_format, max_model_len)


def _settings_class() -> type[ServerSettings]:
    """Raises ConfigError where the extra is not installed."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the server needs {error.name}; install the extra: pip install 'simsd[serve]'.") from error
    from simsd.serving.settings import ServerSettings

    return ServerSettings


def _free_port(host: str, port: int, ray_address: str | None) -> int:
    """The port for replicas: one that is free here, where the cluster is started here. Raises ConfigError."""
    if ray_address is not None:
        if port == 0:
            raise ConfigError("--port 0 takes a free port of this machine; with --ray-address name one.")
        return port
    for candidate in random.sample(NOT_HANDED_OUT, 64) if port == 0 else ():
        with suppress(ConfigError), _listen(host, candidate):
            return candidate
    with _listen(host, port) as listener:
        return listener.getsockname()[1]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}, port {port} ({error.strerror}); choose another.") from error


def _run(llm: LLM, settings: ServerSettings, listener: socket.socket, log_format: str, asked: int | None) -> None:
    """Serves until SIGINT or SIGTERM; what runs then is finished first."""
    from simsd.serving import logs
    from simsd.serving.app import create_app, tell_shortened
    from simsd.serving.server import Server

    logs.to_stream(log_format)
    tell_shortened(llm, asked)
    Server(create_app(llm, settings)).run(sockets=[listener])
