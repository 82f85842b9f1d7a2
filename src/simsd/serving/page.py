"""The playground: static files, under a policy that lets the page run its own scripts and nothing else."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

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


FOLDER = Path(str(resources.files("simsd.serving") / "playground"))


def page_routes() -> list[Route]:
    """A path for each file of the page, and no other; "/" is its index."""
    return [Route("/", _File("index.html"), methods=["GET"])] + [
        Route(f"/{file.name}", _File(file.name), methods=["GET"]) for file in sorted(FOLDER.iterdir()) if file.is_file()
    ]


class _File(StaticFiles):
    """One file, under the policy."""

    def __init__(self, name: str) -> None:
        super().__init__(directory=FOLDER)
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.get_response(self._name, scope)
        response.headers.update(HEADERS)
        await response(scope, receive, send)
