"""`serve`: the explorer on a free port of this computer, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import webbrowser

import uvicorn

from qkprism.errors import QKPrismError
from qkprism.explorer.app import explorer_app
from qkprism.explorer.desk import Desk
from qkprism.explorer.jobs import Worker

HOST = "127.0.0.1"
BACKLOG = 512


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
