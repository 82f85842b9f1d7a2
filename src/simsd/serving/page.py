"""The playground: static files, under a policy that lets the page run its own scripts and nothing else."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",  # no text of a model or of a user can become markup
}

HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # asked for again each time, so that the files are those of one release
}


class Page(StaticFiles):
    """The files of the page; "/" is its index."""

    def __init__(self) -> None:
        super().__init__(directory=Path(str(resources.files("simsd.serving") / "playground")), html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
