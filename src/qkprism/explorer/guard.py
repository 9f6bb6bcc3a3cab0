"""`Guard`: who may ask. The page is for the person who started it: not for others on this computer, nor for web pages.

- The first part of every path is a secret that only the printed address has.
- Host must be this computer under this port, so that no other name can be made to point here (DNS rebinding).
- Origin, where a browser sends it, must be this page.
- What comes back may not be framed, sniffed or cached, and its page can load nothing from anywhere else. Scripts are
  files of ours alone; styles may stand in the page, as plotly writes them into what it draws.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAMES = ("127.0.0.1", "localhost")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Guard:
    """An ASGI app around another: it hands on what may be asked, with the secret taken off the path."""

    app: ASGIApp
    secret: str
    port: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._refusal(scope)
        if refused is not None:
            await PlainTextResponse(refused + "\n", 403, headers=HEADERS)(scope, receive, send)
            return
        inner = {**scope, "path": scope["path"][len(self.secret) + 1 :], "raw_path": None}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(inner, receive, guarded)

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        hosts = [f"{name}:{self.port}" for name in NAMES]
        if headers.get("host") not in hosts:
            return "This page is served to this computer alone. Open the address that qkprism explore printed."
        origin = headers.get("origin")
        if origin is not None and origin not in [f"http://{host}" for host in hosts]:
            return "Another page asked for this one, and may not."
        first = scope["path"][1:].partition("/")[0]
        if not secrets.compare_digest(first.encode("utf-8", "replace"), self.secret.encode()):
            return "The address lacks its secret. Open the whole address that qkprism explore printed."
        return None
