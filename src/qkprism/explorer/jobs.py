"""What waits for the model: one thread that has it does jobs in the order in which they came. An `Errand` is a job that
takes minutes, with how far it is; who wants can stop it at the next step."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.explorer.answers import FORMAT, step_answer
from qkprism.progress import listening

KEPT = 20  # errands that are known
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


class Cancelled(QKPrismError):
    """Someone wanted it to stop."""


@dataclass
class Errand:
    """What is being done: `state` is waiting, running, done, cancelled or failed."""

    title: str
    work: Callable[[Errand], Any]
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = "waiting"
    part: str = ""
    step: tuple[str, int, int] | None = None
    failure: str | None = None
    result: Any = None
    _stop: bool = False

    def cancel(self) -> None:
        """Stop it before it begins, or at its next step."""
        self._stop = True
        if self.state == "waiting":
            self.state = "cancelled"

    def enter(self, part: str) -> None:
        """Another part of the work begins."""
        self._listen("", 0, 0)
        self.part, self.step = part, None

    def run(self) -> None:
        """Do it; whatever goes wrong is told in `failure`."""
        if self._stop:
            return
        self.state = "running"
        try:
            with listening(self._listen):
                self.result = self.work(self)
            self.state = "done"
        except Cancelled:
            self.state = "cancelled"
        except QKPrismError as error:
            self.state, self.failure = "failed", str(error)
        except Exception as error:  # the page would wait for ever
            self.state, self.failure = "failed", f"This could not be computed: {type(error).__name__}: {error}"

    def _listen(self, unit: str, done: int, total: int) -> None:
        if self._stop:
            raise Cancelled("This was stopped.")
        self.step = (unit, done, total)

    def answer(self) -> dict[str, Any]:
        """What the page is told."""
        return {
            "format": FORMAT,
            "job": self.name,
            "title": self.title,
            "state": self.state,
            "part": self.part,
            "step": step_answer(self.step),
            "failure": self.failure,
            "result": self.result,
        }


@dataclass
class Errands:
    """The last jobs, by name."""

    _jobs: OrderedDict[str, Errand] = field(default_factory=OrderedDict)

    def add(self, job: Errand) -> Errand:
        """Keep a job, and forget the oldest that are over."""
        self._jobs[job.name] = job
        over = [name for name, one in self._jobs.items() if one.state not in ("waiting", "running")]
        for name in over[: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[name]
        return job

    def __getitem__(self, name: str) -> Errand:
        if name not in self._jobs:
            raise QKPrismError("There is no such job any more.")
        return self._jobs[name]
