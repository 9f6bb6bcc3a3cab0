"""`Errand`: something that takes minutes, with how far it is; who wants can stop it at the next step."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.explorer.answers import FORMAT
from qkprism.progress import listening

KEPT = 20


class Cancelled(QKPrismError):
    """Someone wanted it to stop."""


@dataclass
class Errand:
    """What is being done: `state` is waiting, running, done, cancelled or failed."""

    title: str
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

    def run(self, work: Callable[[Errand], Any]) -> None:
        """Do it; whatever goes wrong is told in `failure`."""
        if self._stop:
            return
        self.state = "running"
        try:
            with listening(self._listen):
                self.result = work(self)
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
        step = None if self.step is None else dict(zip(("unit", "done", "total"), self.step, strict=True))
        told = {"job": self.name, "title": self.title, "state": self.state, "part": self.part, "step": step}
        return {"format": FORMAT, **told, "failure": self.failure, "result": self.result}


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
