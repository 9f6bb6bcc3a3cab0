"""`Worker`: one thread that has the model, and does jobs in the order in which they came."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from qkprism.errors import QKPrismError

MOST = 64  # jobs that wait


class Worker:
    """Jobs wait in a queue; one that is cancelled while it waits is never done and frees its place.

    The thread is a daemon, so that Ctrl-C ends the process also in the middle of a long job.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._waiting: set[Future[Any]] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._work, name="qkprism-model", daemon=True).start()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Put a job at the end of the queue."""
        future: Future[Any] = Future()
        with self._lock:
            if len(self._waiting) >= self._most:
                raise QKPrismError(f"{self._most} questions wait already. Ask again in a moment.")
            self._waiting.add(future)
        future.add_done_callback(self._leave)
        self._jobs.put((future, job))
        return future

    @property
    def waiting(self) -> int:
        """How many jobs wait or are being done."""
        return len(self._waiting)

    def _leave(self, future: Future[Any]) -> None:
        with self._lock:
            self._waiting.discard(future)

    def _work(self) -> None:
        while True:
            future, job = self._jobs.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as error:  # whatever it is, who asked is told
                future.set_exception(error)
