"""The tap: read and edit queries and keys inside any Hugging Face model, through its attention interface.

Every attention module of transformers looks its attention function up by a name in its config. The tap swaps that
name for one that leads here, shows each call (queries and keys as they meet: rotated, normalised) to a visitor, and
hands it on to the very function the model would have called. No model code is changed, and leaving the `with` block
puts everything back.

    def visit(call: AttentionCall) -> None:
        print(call.layer, call.attention(heads=[6])[0, 0, -1])

    with Tap(hf_model, visit):
        hf_model(**batch)

Registration in transformers is global and cannot be undone, so what is registered has no state: which taps are open
is kept in a context variable, and a call that none of them wants is simply handed on. What a tap changes, such as an
attribute of the model, stays changed until the last one in any thread lets go (`share`).
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from qkprism.errors import QKPrismError
from qkprism.models.calls import AttentionCall, CacheState, named_arguments
from qkprism.models.split import split_of

_ABSENT = object()


@dataclass
class _Held:
    undo: Callable[[], None]
    holders: int = 0


_held: dict[Hashable, _Held] = {}
_lock = threading.Lock()


def share(what: Hashable, begin: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Begin something, which lasts until the last holder, in any thread, lets go; returns the function that lets go.

    The first holder begins it; those that come while it lasts find it begun. `begin` returns what undoes it.
    """
    with _lock:
        if what not in _held:
            _held[what] = _Held(begin())
        held = _held[what]
        held.holders += 1

    def release() -> None:
        with _lock:
            held.holders -= 1
            if held.holders == 0:
                del _held[what]
                held.undo()

    return release


def hold(owner: object, attribute: str, make: Callable[[Any], object]) -> Callable[[], None]:
    """Set an attribute, made of the original one, until the last holder lets go; returns what lets go."""

    def begin() -> Callable[[], None]:
        value, original = make(getattr(owner, attribute, None)), vars(owner).get(attribute, _ABSENT)
        setattr(owner, attribute, value)
        return partial(_restore, owner, attribute, original)

    return share((id(owner), attribute), begin)


def always(value: object) -> Callable[[Any], object]:
    """A value that does not depend on the original."""
    return lambda _: value


def _restore(owner: object, attribute: str, original: object) -> None:
    if original is _ABSENT:
        delattr(owner, attribute)  # what its class has shows again
    else:
        setattr(owner, attribute, original)


Visitor = Callable[[AttentionCall], None]
OutputVisitor = Callable[[AttentionCall, Tensor], None]
Layers = Mapping[str, tuple[int | None, ...]]

_open_taps: ContextVar[tuple[Tap, ...]] = ContextVar("qkprism_open_taps", default=())


class TapName(str):
    """The name of an attention implementation that reads like the original but is another key in a dictionary.

    transformers asks `name == "eager"`, `name in ("eager", "sdpa")` or `"flash" in name` to choose masks and kernels.
    The answers stay the same, and only the two registries, which look names up by their hash, lead to the tap.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(("qkprism.tap", str(self)))


class _Stop(BaseException):
    """Ends a forward pass early; caught by the tap that asked for it. No model code may catch it on the way."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap


class Tap:
    """Show the attention calls of a model to `visit` while the `with` block is open.

    `layers` maps names of attention modules to the layer numbers of their successive calls in one pass: nearly always
    one, more where layers share weights, None for a call that is not wanted. Without it every module is shown,
    numbered in the order of the first calls. `stop_at=n` ends the pass inside layer n: after the visitor has seen it
    and before its attention is computed. `visit_output` sees what the model's own attention function returned. A pass
    that reaches none of the layers, or with `strict` not all of them, is an error.
    """

    def __init__(
        self,
        hf: PreTrainedModel,
        visit: Visitor,
        *,
        layers: Layers | None = None,
        stop_at: int | None = None,
        strict: bool = False,
        visit_output: OutputVisitor | None = None,
    ) -> None:
        self.hf, self.visit, self.layers = hf, visit, layers
        self.stop_at, self.strict, self.visit_output = stop_at, strict, visit_output
        self.calls: Counter[int] = Counter()
        self._names: dict[nn.Module, str] = {}
        self._turns: Counter[nn.Module] = Counter()
        self._caches: dict[nn.Module, CacheState] = {}
        self._angles: dict[nn.Module, Any] = {}
        self._heard = self._completed = False
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> Tap:
        if self._undo:
            raise QKPrismError("This tap is open already. Make another Tap for a nested `with` block.")
        self._names = {module: name for name, module in self._modules()}
        self.calls.clear()
        self._turns.clear()
        self._heard = self._completed = False
        try:
            self._install()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        self._restore()
        stopped = isinstance(error, _Stop) and error.tap is self
        if stopped or (error is None and self._completed):
            self._check_calls()
        return stopped

    def _check_calls(self) -> None:
        if not self._heard:
            raise QKPrismError(
                f"{type(self.hf).__name__} ran without calling the attention interface of transformers, so nothing was "
                "read. If the model is compiled, give the original; otherwise this architecture is not supported."
            )
        wanted = {number for numbers in (self.layers or {}).values() for number in numbers if number is not None}
        unseen = sorted(wanted - set(self.calls))
        if unseen and (self.strict or not self.calls):
            raise QKPrismError(
                f"These inputs do not reach layers {', '.join(map(str, unseen))} of {type(self.hf).__name__}. Add the "
                "inputs that they work on (such as pixel_values), or do not ask for them."
            )

    def number(self, module: nn.Module) -> int | None:
        """The layer number of the call that this module makes now; None if it is not wanted."""
        self._heard = True
        if module not in self._names:
            return None
        self._turns[module] += 1
        if self.layers is None:
            return list(self._turns).index(module)
        numbers = self.layers[self._names[module]]
        return numbers[(self._turns[module] - 1) % len(numbers)]

    def show(self, call: AttentionCall, number: int) -> None:
        """Count the call, place it, and let the visitor see it."""
        call.layer, call.name = number, self._names[call.module]
        call.cache = self._caches.get(call.module, CacheState())
        call.angles = self._angles.pop(call.module, None)
        self.calls[number] += 1
        self.visit(call)

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        if self.layers is None:
            yield from self.hf.named_modules()
        else:
            yield from ((name, self.hf.get_submodule(name)) for name in self.layers)

    def _install(self) -> None:
        outer = _open_taps.get()
        _open_taps.set((*outer, self))
        self._undo.append(lambda: _open_taps.set(outer))
        for config in _configs(self.hf):
            if config._attn_implementation is not None:
                name = _register(str(config._attn_implementation))
                self._undo.append(hold(config, "_attn_implementation_internal", always(name)))
        generation = getattr(self.hf, "generation_config", None)
        if generation is not None:
            # A compiled decoding step would bake the tap, or its absence, into the graph.
            self._undo.append(hold(generation, "disable_compile", always(True)))
        for module in {self.hf, self.hf.base_model}:
            self._undo.append(module.register_forward_hook(self._note_completed).remove)
        for module in filter(_calls_interface, self._names):
            self._undo.append(module.register_forward_pre_hook(self._note_arguments, with_kwargs=True).remove)

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()

    # Hooks are seen by every thread that runs the model, taps only by the one that opened them.

    def _note_completed(self, *_: object) -> None:
        self._completed = self._completed or self in _open_taps.get()

    def _note_arguments(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Before the module runs, because it writes its new keys into the cache before it calls the interface.
        if self in _open_taps.get():
            arguments = named_arguments(module, args, kwargs)
            self._caches[module] = CacheState.read(module, arguments)
            self._angles[module] = arguments.get("position_embeddings")


def _tapped(
    implementation: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """What is registered: show the call to the open taps that want it, and hand it on."""
    delegate = _delegate(module, implementation)
    taps = [(tap, number) for tap in _open_taps.get() if (number := tap.number(module)) is not None]
    if not taps:
        return delegate(module, query, key, value, *args, **kwargs)
    split = split_of(taps[0][0].hf, module, query.shape[1])
    local, shown = (query, key, value), (query, key, value)
    if split is not None:
        shown = split.whole(query), split.whole(key), split.whole(value)
    call = AttentionCall.read(implementation, module, shown, args, kwargs)
    if split is not None and call.sinks is not None:
        call.sinks = split.whole(call.sinks, 0)
    for tap, number in taps:
        tap.show(call, number)
    for tap, number in taps:
        if tap.stop_at == number:
            raise _Stop(tap)
    call.settle_edits(shown)
    if split is None:
        output, weights = delegate(module, call.query, call.key, call.value, *args, **kwargs)
        return _finished(taps, call, output, weights)
    edited = zip((call.query, call.key, call.value), shown, local, strict=True)
    output, weights = delegate(module, *(o if new is w else split.part(new) for new, w, o in edited), *args, **kwargs)
    if not call.head_edits and all(tap.visit_output is None for tap, _ in taps):
        return output, weights
    whole_weights = None if weights is None else split.whole(weights)
    output, weights = _finished(taps, call, split.whole(output, 2), whole_weights)
    return split.part(output, 2).contiguous(), None if weights is None else split.part(weights)


def _finished(
    taps: Sequence[tuple[Tap, int]], call: AttentionCall, output: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Show what the attention function returned, and put edited heads into it."""
    for tap, _ in taps:
        if tap.visit_output is not None:
            tap.visit_output(call, output)
    return call.apply_head_edits(output, weights)


def _delegate(module: nn.Module, implementation: str) -> Callable[..., Any]:
    """The function the module would have called; the modeling file that defines its class may have its own."""
    interface, eager = _home(type(module).forward)
    return interface.get("eager", eager) if implementation == "eager" else interface[implementation]


@cache
def _home(forward: Callable[..., Any]) -> tuple[AttentionInterface, Callable[..., Any] | None]:
    forward = inspect.unwrap(forward)
    interface = forward.__globals__.get("ALL_ATTENTION_FUNCTIONS")
    names = [name for name in forward.__code__.co_names if name.endswith("eager_attention_forward")]
    eager = forward.__globals__.get((*names, "eager_attention_forward")[0])
    return (AttentionInterface() if interface is None else interface), eager


def _calls_interface(module: nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _register(implementation: str) -> TapName:
    """Lead the tap's name for an implementation to `_tapped`, with the masks of the original."""
    name = TapName(implementation)
    AttentionInterface.register(name, partial(_tapped, implementation))
    masks = AttentionMaskInterface()
    if implementation in masks:
        # Without an entry here transformers drops the mask and says nothing.
        AttentionMaskInterface.register(name, masks[implementation])
    return name


def _configs(hf: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every config that a module of the model reads, and the configs inside these."""
    found: dict[int, PreTrainedConfig] = {}
    queue = [getattr(module, "config", None) for module in hf.modules()]
    while queue:
        config = queue.pop()
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            queue.extend(getattr(config, key, None) for key in config.sub_configs)
    return list(found.values())
