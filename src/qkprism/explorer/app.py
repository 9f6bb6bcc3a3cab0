"""The server: files of the page, and JSON. Whatever goes wrong is a sentence, as {"error": ...}."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from qkprism.errors import QKPrismError
from qkprism.explorer.answers import FORMAT, dumps
from qkprism.explorer.assets import PLOTLY, asset, asset_names, kind_of
from qkprism.explorer.desk import Desk
from qkprism.explorer.draft import draft_answer, draft_of, marked_line, shelf_answer
from qkprism.explorer.guard import Guard
from qkprism.explorer.jobs import Worker
from qkprism.explorer.library import word_of
from qkprism.explorer.what_if import Wish
from qkprism.heads import Head
from qkprism.options import names_in, show

LARGEST = 256_000  # bytes of a question
GONE = 499  # nobody reads it
HOST = "127.0.0.1"
BACKLOG = 512

Answer = Callable[[Mapping[str, Any]], Any]


def explorer_app(desk: Desk, worker: Worker, *, secret: str, port: int) -> Guard:
    """The whole server as an ASGI app; opening the desk is the worker's first job."""

    async def start(_: Request) -> Response:
        return answered(desk.start())

    def route(name: str, reply: Callable[..., Any], **how: Any) -> Route:
        return Route(f"/api/{name}", partial(reply, **how), methods=["POST"])

    routes = [
        Route("/", page),
        Route("/static/{name}", static),
        Route("/api/start", start),
        *(route(name, _reply, worker=worker, answer=answer) for name, answer in _questions(desk).items()),
        *(route(name, _reply_at_once, answer=answer) for name, answer in _quick(desk, worker).items()),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _missing, 405: _missing})
    return Guard(app, secret, port)


def _questions(desk: Desk) -> dict[str, Answer]:
    """What is asked of the model, and so waits for it."""
    return {
        "explain": lambda q: desk.explain(*_text_and_query(q), _method(q)),
        "row": lambda q: desk.row(*_text_and_query(q), word_of(q, "head"), _place(q, "key"), _method(q)),
        "arcs": lambda q: desk.arcs(word_of(q, "text"), word_of(q, "head")),
        "edits": lambda q: desk.edits(word_of(q, "head")),
        "whatif": lambda q: _what_if(desk, q),
        **{name: answer for name, answer in desk.library.answers().items() if name not in ("start", "seen")},
        "seen": lambda q: desk.seen(
            *(word_of(q, name) for name in ("head", "run", "feature", "texts")),
            n=q.get("n", 64),
            umap=q.get("umap") is True,
        ),
        "draft": lambda q: draft_answer(draft_of(q), desk.model),
        "mark": lambda q: _mark(desk, q),
    }


def _quick(desk: Desk, worker: Worker) -> dict[str, Answer]:
    """What needs no model, and is answered while it works."""
    return {
        "shelf": lambda _: shelf_answer(),
        "try": lambda q: _try(desk, worker, q),
        "job": lambda q: desk.jobs[word_of(q, "job")].answer(),
        "cancel": lambda q: _cancel(desk, q),
    }


async def page(_: Request) -> Response:
    """The page."""
    return Response(asset("index.html"), media_type="text/html")


async def static(request: Request) -> Response:
    """One file of the page; no other file can be named."""
    name = request.path_params["name"]
    if name not in (*asset_names(), PLOTLY):
        return problem("There is no such file.", 404)
    return Response(asset(name), media_type=kind_of(name))


def answered(value: Any, status: int = 200) -> Response:
    """JSON."""
    return Response(dumps(value), status, media_type="application/json")


def problem(sentence: str, status: int = 400) -> Response:
    """What went wrong, as a sentence."""
    return answered({"error": sentence}, status)


async def _missing(_: Request, __: Exception) -> Response:
    return problem("There is nothing at this address.", 404)


async def _reply(request: Request, worker: Worker, answer: Answer) -> Response:
    """Read a question, wait for the model, answer; a client that goes away frees its place."""
    try:
        question = await _question(request)
        job = worker.submit(lambda: answer(question))
        gone = asyncio.ensure_future(_gone(request))
        done = asyncio.wrap_future(job)
        try:
            await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                return Response(status_code=GONE)
            return answered(done.result())
        finally:
            gone.cancel()
            done.cancel()
    except QKPrismError as error:
        return problem(str(error))
    except ClientDisconnect:
        return Response(status_code=GONE)
    except Exception as error:
        logging.getLogger("qkprism").exception("A question could not be answered.")
        return problem(f"This could not be computed: {type(error).__name__}: {error}", 500)


async def _reply_at_once(request: Request, answer: Answer) -> Response:
    """Answer what needs no model, and so need not wait for it."""
    try:
        return answered(answer(await _question(request)))
    except QKPrismError as error:
        return problem(str(error))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _question(request: Request) -> Mapping[str, Any]:
    """The body of a request, no larger than it may be, as a JSON object."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise QKPrismError("A question is JSON: send it with content-type: application/json.")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST:
            raise QKPrismError(f"The question is larger than {LARGEST:,} bytes. Shorten the text.")
    try:
        question = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise QKPrismError("The question is not JSON.") from error
    if not isinstance(question, dict):
        raise QKPrismError(f"The question is a JSON object, not {show(question)}.")
    return question


def _mark(desk: Desk, q: Mapping[str, Any]) -> dict[str, Any]:
    place = _place(q, "place")
    if place is None:
        raise QKPrismError("Say which token is marked.")
    return {"format": FORMAT, "line": marked_line(word_of(q, "line"), place, word_of(q, "sign"), desk.model)}


def _try(desk: Desk, worker: Worker, q: Mapping[str, Any]) -> dict[str, Any]:
    """Put a contrast in the queue of the model; the job says how far it is."""
    job = desk.trial(draft_of(q), word_of(q, "place"), n=q.get("n", 128), top=q.get("top", 4))
    worker.submit(job.run)
    return job.answer()


def _cancel(desk: Desk, q: Mapping[str, Any]) -> dict[str, Any]:
    job = desk.jobs[word_of(q, "job")]
    job.cancel()
    return job.answer()


def _what_if(desk: Desk, q: Mapping[str, Any]) -> dict[str, Any]:
    """A question for an edit, read and answered."""
    query, original, target = (_place(q, name) for name in ("query", "key", "target"))
    if query is None or original is None or target is None:
        raise QKPrismError("An edit needs a query, a key and a target: numbers of tokens.")
    wish = Wish(Head.parse(word_of(q, "head")), query, original, target, q.get("kind", "swap"), q.get("amount", 1.0))
    part, run = (None if q.get(name) is None else word_of(q, name) for name in ("part", "run"))
    if (part is None) == (run is None):
        raise QKPrismError("Give a part, or a run with its features.")
    features = names_in(q.get("features", []), "features")
    together = q.get("together") is True
    return desk.what_if(word_of(q, "text"), wish, part=part, run=run, features=features, together=together)


def _text_and_query(question: Mapping[str, Any]) -> tuple[str, int | None]:
    return word_of(question, "text"), _place(question, "query")


def _method(question: Mapping[str, Any]) -> str | None:
    return None if question.get("method") is None else word_of(question, "method")


def _place(question: Mapping[str, Any], name: str) -> int | None:
    value = question.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise QKPrismError(f"{name} is the number of a token, not {show(value)}.")
    return value


# Serving


def serve(desk: Desk, *, port: int = 0, browser: bool = True) -> None:
    """Serve a desk and say where, on standard output; Ctrl-C ends it.

    port     0 for any that is free
    browser  whether the page is opened
    """
    listener = _listener(port)
    port, secret = listener.getsockname()[1], secrets.token_urlsafe(16)
    worker = Worker()
    worker.submit(desk.open)
    config = uvicorn.Config(
        explorer_app(desk, worker, secret=secret, port=port),
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    address = f"http://{HOST}:{port}/{secret}/"
    print(f"The explorer is at {address}\nCtrl-C ends it.", flush=True)
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    if worker.waiting:
        os._exit(0)  # a thread that is within torch cannot be stopped, and would abort a process that waits for its end


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(BACKLOG)  # who is quicker than the server waits, and is not refused
    except OSError as error:
        listener.close()
        raise QKPrismError(
            f"Port {port} cannot be used ({error.strerror}). Leave --port out for a free one."
        ) from error
    return listener
