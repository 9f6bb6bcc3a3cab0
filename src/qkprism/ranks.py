"""Several processes that share one job: `torchrun --nproc-per-node 4 -m qkprism -- decompose ...`.

Each process (rank) works on items of its own, whole ones in turn, so that every item is done exactly once:

    for made in in_turn(batches, run):      # all ranks get what every rank made, in the order of the items
        add(made)

What is additive is summed over ranks (`added`). The first rank writes and speaks. Every exchange begins by telling
whether a rank has failed: then all of them stop, and say why. This is the only place that knows torch.distributed; what
is exchanged is on the CPU, by gloo, in a group of our own, whatever a model runs on.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from qkprism.errors import QKPrismError
from qkprism.packing import bytes_of, values_of

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
Made = TypeVar("Made")
AT_ONCE = 4  # items that a rank does between two exchanges
GO_ON = "The same command goes on from its last checkpoint, with any number of processes."


class RankError(QKPrismError):
    """What a rank could not do, told to all of them."""


class RankLost(RankError):
    """A rank has ended without a word."""


class RankStopped(RankError):
    """This process cannot go on while others wait for it in the middle of a pass: it tells so itself, and ends."""


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this one is."""

    number: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.number == 0

    def mine(self, items: Sequence[Item]) -> Sequence[Item]:
        """The items of this rank: every `count`-th.

        >>> [Ranks(number, 3).mine(range(4)) for number in range(3)]
        [range(0, 4, 3), range(1, 4, 3), range(2, 4, 3)]
        """
        return items[self.number :: self.count]


ALONE = Ranks()
_by_itself: list[bool] = []
_together: list[int] = [1]  # processes that hold one model between them, which do the same work


def ranks() -> Ranks:
    """This process among those of its group; alone without one. No torch is imported for it."""
    distributed = sys.modules.get("torch.distributed")
    if _by_itself or distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ALONE
    return Ranks(distributed.get_rank() // _together[0], distributed.get_world_size() // _together[0])


def processes() -> int:
    """How many processes there are, also those that hold one model between them."""
    return _world()[1]


def hold_together(count: int) -> None:
    """So many processes in a row hold one model between them: they do the same work, and are one rank."""
    _together[0] = count


@contextmanager
def holding_a_part(examples: int) -> Iterator[None]:
    """A pass of so many examples: where processes hold one model between them, none can try again by itself."""
    try:
        yield
    except RuntimeError as error:
        if _together[0] == 1:
            raise
        if out_of_memory(error):
            raise RankStopped(
                f"process {_world()[0]}: memory ran out with {examples} examples at once. It holds a part of the "
                "model's heads, so it cannot make its batches smaller without the other processes. Give a smaller "
                f"--batch-size. {GO_ON}"
            ) from error
        if any(word in str(error) for word in ("gloo", "Gloo", "NCCL", "onnection")):
            raise RankLost(f"Another process of this job has ended, so the others stop. {GO_ON}") from error
        raise


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on a CPU."""
    return type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)


def _world() -> tuple[int, int]:
    here = ranks()
    if here == ALONE and _together[0] == 1:
        return 0, 1
    if _by_itself:
        return 0, 1
    distributed = sys.modules["torch.distributed"]
    return distributed.get_rank(), distributed.get_world_size()


def is_first() -> bool:
    """Whether this process writes and speaks."""
    return _world()[0] == 0


def _leads() -> bool:
    """Whether this process tells what its rank has made."""
    return _world()[0] % _together[0] == 0


@contextmanager
def by_itself() -> Iterator[None]:
    """A block that a process does alone, while the others do something else or wait."""
    _by_itself.append(True)
    try:
        yield
    finally:
        _by_itself.pop()


def join() -> Ranks:
    """Join the processes that torchrun (or accelerate launch) started with this one, if it did."""
    if int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return ALONE
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
        atexit.register(_leave)
    signal.signal(signal.SIGTERM, _ended)
    return ranks()


def _leave() -> None:
    """Close the group while Python still stands: threads of its own that outlive it abort the process."""
    from torch import distributed

    _group.clear()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _ended(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    """torchrun ends all processes if one of them dies; so does whoever takes a node away."""
    if is_first():
        told = "qkprism: stopped: another process of this job has ended, or the job was told to end."
        os.write(2, f"\n{told} {GO_ON}\n".encode())
    os._exit(128 + number)


_group: list[Any] = []  # of gloo, for the process group that there is


def _gloo() -> Any:
    from torch import distributed

    if not _group or _group[0] is not distributed.group.WORLD:
        _group[:] = [distributed.group.WORLD, distributed.new_group(backend="gloo")]
    return _group[1]


@contextmanager
def _reaching() -> Iterator[None]:
    """Let what gloo says of a rank that is gone be a sentence."""
    try:
        yield
    except RuntimeError as error:
        told = f"Another process of this job has ended, so the others stop. {GO_ON}"
        raise RankLost(told) from error


def exchanged(value: Made, failure: str | None = None) -> list[Made]:
    """What every rank gives, in their order; where one tells of a failure, all of them raise it."""
    if processes() == 1:
        return [value]
    value = value if _leads() else None  # type: ignore[assignment]
    every = [values_of(body) for body in _gathered(bytes_of((value, failure)))]
    told: dict[str, list[int]] = {}
    for number, (_, reason) in enumerate(every):
        if reason is not None:
            told.setdefault(reason, []).append(number)
    if told:
        raise RankError("\n".join(_by_rank(reason, numbers) for reason, numbers in told.items()))
    return [value for value, _ in every[:: _together[0]]]


def _gathered(body: bytes) -> list[bytes]:
    """The bytes of every rank."""
    import torch
    from torch import distributed

    here, count = torch.frombuffer(bytearray(body), dtype=torch.uint8), processes()
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(count)]
    with _reaching():
        distributed.all_gather(sizes, torch.tensor([len(body)]), group=_gloo())
        longest = int(max(sizes))
        every = [torch.empty(longest, dtype=torch.uint8) for _ in range(count)]
        padded = torch.cat([here, here.new_zeros(longest - len(here))])
        distributed.all_gather(every, padded, group=_gloo())
    return [one[: int(size)].numpy().tobytes() for one, size in zip(every, sizes, strict=True)]


def _by_rank(reason: str, numbers: Sequence[int]) -> str:
    """A failure, with the numbers of the processes that had it if others had not."""
    if len(numbers) == processes():
        return reason
    return f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}: {reason}"


@contextmanager
def failing_together() -> Iterator[None]:
    """What this rank cannot do in this block is told to the others, which wait for it, and raised in all of them."""
    try:
        yield
    except RankError:
        raise
    except QKPrismError as error:
        exchanged(None, str(error))
        raise


def in_turn(items: Sequence[Item], work: Callable[[Item], Made]) -> Iterator[Made]:
    """What is made of every item, in their order, on every rank; each rank works on some of them."""
    here = ranks()
    if here.count == 1:
        yield from map(work, items)
        return
    at_once = AT_ONCE * here.count
    for start in range(0, len(items), at_once):
        with failing_together():
            made = [work(item) for item in here.mine(items[start : start + at_once])]
        every = exchanged(made)
        for place in range(min(at_once, len(items) - start)):
            yield every[place % here.count][place // here.count]


def added(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sums over all ranks of tensors by name, which every rank has; on the CPU where there is more than one rank."""
    if ranks().count == 1:
        return dict(tensors)
    import torch
    from torch import distributed

    total = {name: tensor.detach().cpu() * int(_leads()) for name, tensor in tensors.items()}
    for dtype in sorted({tensor.dtype for tensor in total.values()}, key=str):
        names = [name for name in total if total[name].dtype == dtype]
        flat = torch.cat([total[name].flatten() for name in names])
        with _reaching():
            distributed.all_reduce(flat, group=_gloo())
        parts = flat.split([total[name].numel() for name in names])
        total |= {name: part.view(total[name].shape) for name, part in zip(names, parts, strict=True)}
    return total


def of_first(work: Callable[[], Made]) -> Made:
    """What the first rank makes, on every rank; the others do not try."""
    with failing_together():
        made = work() if is_first() else None
    return exchanged(made)[0]  # type: ignore[return-value]


def wait() -> None:
    """Until every rank is here."""
    exchanged(None)
