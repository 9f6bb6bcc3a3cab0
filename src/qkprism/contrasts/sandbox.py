"""Jinja in a cage: a template from a stranger can write text, and nothing else, and not much of it.

What is not on a list here is refused: tags (for, if, set), filters, tests, methods. Every loop, call and sum costs a
step, and steps, seconds, output and the size of every value are bounded, so that no single step can take long:

    sandbox = Sandbox()
    greeting = sandbox.text("{% for name in names %}{{ name }}, {% endfor %}hello")
    list(sandbox.write(greeting, {"names": ["Ann", "Tom"]}))     # ['Ann', ', ', 'Tom', ', ', 'hello']
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2 import Template as Code
from jinja2.compiler import CodeGenerator
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.visitor import NodeTransformer

from qkprism.contrasts.values import FILTERS, ITEM_LIMIT, TEXT_LIMIT, Fault, Mark, defined, items, kind, number, size
from qkprism.options import show

SOURCE_LIMIT = 10_000  # characters of a template
DEPTH_LIMIT = 100  # of its expressions, one inside another
STEP_LIMIT = 2_000  # loops, calls and sums of one prompt
SECONDS_LIMIT = 1.0  # of the processor, for one prompt: a busy machine is no fault of the template
ITEMS_A_STEP = 50  # going through a list costs more, the longer it is

_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign),
    *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call, nodes.Filter, nodes.Test, nodes.CondExpr),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos, nodes.Concat),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod),
)
_TAGS = {
    nodes.Macro: "macro",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter",
    nodes.AssignBlock: "set ... endset",
    nodes.With: "with",
    nodes.Block: "block",
    nodes.Extends: "extends",
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from ... import",
    nodes.Pow: "**",
    nodes.NSRef: "a namespace",
}
_METHODS: dict[type, tuple[str, ...]] = {
    str: ("upper", "lower", "capitalize", "title", "strip", "startswith", "endswith", "split", "index", "count"),
    list: ("index", "count"),
    tuple: ("index", "count"),
    dict: ("keys", "values", "items"),
    LoopContext: ("index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem"),
}
_SCOPES = ("_loop_vars", "_block_vars")  # what Jinja's own functions are told of a call
_TESTS = ("defined", "undefined", "even", "odd", "divisibleby", "in", "none", "string", "number", "sequence")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "eq", "ne", "lt", "le", "gt", "ge", "equalto")


@dataclass(frozen=True)
class Compiled:
    """A template, or an expression, that has been found harmless, with the variables that it needs and their lines."""

    source: str
    code: Code
    needs: Mapping[str, int]


class Sandbox:
    """Compiles and runs templates and expressions."""

    def __init__(self) -> None:
        self._cage = _Cage()

    def text(self, source: str) -> Compiled:
        """Compile the template of a text."""
        with _faults(None):
            _check_source(source)
            return self._compiled(source, self._cage.parse(source))

    def expression(self, source: str) -> Compiled:
        """Compile one expression, such as `sample(objects, 5)`."""
        with _faults(None):
            _check_source(source)
            parser = Parser(self._cage, source, state="variable")
            value = parser.parse_expression()
            if not parser.stream.eos:
                raise TemplateSyntaxError(
                    "an expression ends here and something follows it", parser.stream.current.lineno
                )
            assigned = nodes.Assign(nodes.Name("result", "store", lineno=1), value, lineno=1)
            tree = nodes.Template([assigned], lineno=1)
            tree.set_environment(self._cage)
            return self._compiled(source, tree)

    def _compiled(self, source: str, tree: nodes.Template) -> Compiled:
        _check_tree(tree)
        needed = find_undeclared_variables(tree)
        named = [(name.name, name.lineno) for name in tree.find_all(nodes.Name) if name.name in needed]
        return Compiled(source, self._cage.from_string(tree), dict(reversed(named)))

    def one_prompt(self) -> AbstractContextManager[None]:
        """All that runs inside shares the steps and seconds of one prompt."""
        return self._cage.spending()

    def value(self, expression: Compiled, values: Mapping[str, Any]) -> Any:
        """What an expression comes to."""
        with _faults(expression.code), self._cage.spending():
            context = expression.code.new_context(dict(values))
            for _ in expression.code.root_render_func(context):
                pass
            result = context.vars["result"]
            defined(result)
            return result

    def write(self, template: Compiled, values: Mapping[str, Any]) -> Iterator[str | Mark]:
        """The pieces of a text."""
        length = 0
        with _faults(template.code), self._cage.spending():
            pieces: Iterable[Any] = template.code.root_render_func(template.code.new_context(dict(values)))
            for piece in pieces:
                length += len(piece.text if isinstance(piece, Mark) else piece)
                if length > TEXT_LIMIT:
                    raise Fault(f"the text is longer than {TEXT_LIMIT} characters; write less")
                yield piece


@contextmanager
def _faults(code: Code | None) -> Iterator[None]:
    """Turn whatever goes wrong into a fault with the line of the template."""
    try:
        yield
    except GeneratorExit:
        raise
    except Exception as error:  # a template can make Python raise anything
        raise _fault(error, code) from None


def _fault(error: Exception, code: Code | None) -> Fault:
    line, word = (error.line, error.word) if isinstance(error, Fault) else (1, "")
    if isinstance(error, TemplateSyntaxError):
        line = error.lineno
    step = None if code is None else error.__traceback__
    while step is not None:
        template: Any = step.tb_frame.f_globals.get("__jinja_template__")
        if template is not None and template == code:
            line = template.get_corresponding_lineno(step.tb_lineno)
        step = step.tb_next
    return Fault(_words(error), max(line, 1), word)


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError | MemoryError):
        return "it is nested too deeply; write it flatter"
    if isinstance(error, SyntaxError):
        return f"too much is nested: {error.msg}"
    if isinstance(error, ZeroDivisionError):
        return "it divides by zero"
    message = error.message if isinstance(error, TemplateSyntaxError) else str(error)
    text = " ".join((message or type(error).__name__).replace("functions.<locals>.", "").split()).rstrip(".")
    return text if len(text) <= 300 else f"{text[:300]}..."


def _check_source(source: str) -> None:
    if len(source) > SOURCE_LIMIT:
        raise Fault(f"it has {len(source)} characters, and at most {SOURCE_LIMIT} are read")


def _check_tree(tree: nodes.Template) -> None:
    """Refuse what is not on the list, before anything of it runs."""
    open_nodes: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while open_nodes:
        node, depth = open_nodes.pop()
        _check_node(node)
        if depth > DEPTH_LIMIT:
            raise Fault("it is nested too deeply; write it flatter", node.lineno)
        open_nodes += [(child, depth + 1) for child in node.iter_child_nodes()]


def _check_node(node: nodes.Node) -> None:
    line = node.lineno or 1
    if type(node) not in _NODES:
        what = _TAGS.get(type(node), type(node).__name__.lower())
        raise Fault(f"{what!r} is not allowed here; a template has for, if, set and expressions", line, what)
    if isinstance(node, nodes.For) and node.recursive:
        raise Fault("a loop cannot be recursive here", line, "recursive")
    if isinstance(node, nodes.Name) and (node.name.startswith("_") or node.name in ("self", "super", "caller")):
        raise Fault(f"the name {node.name!r} is not allowed here", line, node.name)
    if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
        raise Fault(f"the attribute {node.attr!r} is not allowed here", line, node.attr)
    if isinstance(node, nodes.Const) and isinstance(node.value, int | float):
        number(node.value)
    if isinstance(node, nodes.Filter):
        _check_known(node.name, FILTERS, "filter", line)
    if isinstance(node, nodes.Test):
        _check_known(node.name, (*_TESTS, *_COMPARISONS), "test", line)


def _check_known(name: str, allowed: Iterable[str], what: str, line: int) -> None:
    if name not in allowed or name.startswith("_"):
        shown = ", ".join(one for one in allowed if one[0].isalpha())
        raise Fault(f"the {what} {name!r} is not allowed here; there are {shown}", line, name)


# What runs


class _Pieces(CodeGenerator):
    """Code that yields what `finalize` returns as it is: a mark stays a mark."""

    def _output_child_pre(self, node: nodes.Expr, frame: Any, finalize: Any) -> None:  # noqa: ARG002
        self.write(finalize.src)

    def _output_child_post(self, node: nodes.Expr, frame: Any, finalize: Any) -> None:  # noqa: ARG002
        self.write(")")


class _Guarded(NodeTransformer):
    """Lets loops be counted, and lists and joined texts be measured."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _guard("_counted", node.iter)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _guard("_weighed", node.expr)
        for operand in node.ops:
            operand.expr = _guard("_weighed", operand.expr)
        return node

    def visit_List(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if isinstance(node, nodes.Tuple) and node.ctx != "load" else _guard("_sized", node)

    visit_Dict = visit_Tuple = visit_List

    def visit_CondExpr(self, node: nodes.CondExpr) -> nodes.Node:
        self.generic_visit(node)
        node.expr2 = node.expr2 or nodes.Const("", lineno=node.lineno)  # nothing is written where there is no else
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _guard("join", nodes.List(node.nodes, lineno=node.lineno))


def _guard(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Cage(ImmutableSandboxedEnvironment):
    """The environment in which templates run."""

    code_generator_class = _Pieces
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            optimized=False,
            cache_size=0,
            undefined=StrictUndefined,
            finalize=self.written,
        )
        self.globals = {}
        self.filters = {name: self._spent(function) for name, function in FILTERS.items()}
        self.filters |= {"_sized": self.sized, "_weighed": self.weighed, "_counted": self.counted}
        self.tests = {name: TESTS[name] for name in (*_TESTS, *_COMPARISONS)}
        self.steps, self.deadline = 0, math.inf

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Give what runs inside its steps and seconds; what runs inside that shares them."""
        if self.deadline < math.inf:
            yield
            return
        self.steps, self.deadline = STEP_LIMIT, time.thread_time() + SECONDS_LIMIT
        try:
            yield
        finally:
            self.deadline = math.inf

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise Fault(f"it takes more than {STEP_LIMIT} steps to write one prompt; use fewer or shorter loops")
        if time.thread_time() > self.deadline:
            raise Fault(f"it takes more than {SECONDS_LIMIT:g} second to write one prompt; use fewer or shorter loops")

    def _spent(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def filtered(value: Any, *options: Any, **named: Any) -> Any:
            defined(value)
            return function(self.weighed(value), *options, **named)

        return filtered

    def weighed(self, value: Any) -> Any:
        """The value, paid for by its size."""
        self.step(1 + size(value) // ITEMS_A_STEP)
        return value

    def counted(self, value: Any) -> list[Any]:
        """What a loop goes through, a step an item."""
        defined(value)
        found = items(value)
        self.step(1 + len(found))
        return found

    def sized(self, value: Any) -> Any:
        """The value, unless there is too much of it."""
        if isinstance(value, str) and len(value) > TEXT_LIMIT:
            raise Fault(f"a text is longer than {TEXT_LIMIT} characters")
        if size(value) > ITEM_LIMIT and not isinstance(value, str):
            raise Fault(f"a list has more than {ITEM_LIMIT} items")
        return self.weighed(value)

    def _generate(self, source: nodes.Template, name: Any, filename: Any, defer_init: bool = False) -> str:
        _Guarded().visit(source)
        return super()._generate(source, name, filename, defer_init)

    def written(self, value: Any) -> str | Mark:
        """What is written for a value in a text."""
        defined(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float | Mark):
            raise Fault(f"{kind(value)} cannot be written into a text; write a word or a number")
        return value if isinstance(value, str | Mark) else str(value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.step()
        defined(obj)
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        allowed = _METHODS.get(type(obj), ())
        if attribute not in allowed:
            has = f"it has {', '.join(allowed)}" if allowed else "it has none"
            raise Fault(f"{kind(obj)} has no {attribute!r} here; {has}", word=attribute)
        return getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.step()
        defined(obj, argument)
        if not isinstance(obj, str | list | tuple | dict):
            raise Fault(f"{kind(obj)} has no items")
        try:
            return obj[argument]
        except (LookupError, TypeError):
            what = f"{kind(obj)} of {len(obj)}"
            raise Fault(f"there is no item {show(argument, 30)} in {what}") from None

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.step()
        defined(__obj, *args, *kwargs.values())
        if not isinstance(__obj, FunctionType | MethodType | BuiltinMethodType):
            raise Fault(f"{kind(__obj)} is not a function")
        for value in (*args, *kwargs.values()):
            __self.weighed(value)
        return __obj(*args, **{name: value for name, value in kwargs.items() if name not in _SCOPES})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        self.step()
        defined(left, right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return number(self.binop_table[operator](left, right))
        if operator == "+" and type(left) is type(right) and isinstance(left, str | list | tuple):
            return self.sized(left + right)
        if operator == "*" and isinstance(left, str | list | tuple) and isinstance(right, int):
            if len(left) * right > (TEXT_LIMIT if isinstance(left, str) else ITEM_LIMIT):
                raise Fault(f"{kind(left)} of {len(left)} times {right} is too long")
            return self.sized(left * right)
        raise Fault(f"{operator!r} cannot be used with {kind(left)} and {kind(right)}")
