"""Laws of markup, of JSON lines and of contrasts; what is refused, and with which words."""

from __future__ import annotations

import copy
import gc
import json
import math
import pickle
import weakref
from collections.abc import Callable
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from qkprism.contrasts import Contrast, Example, Span, Text, Written
from qkprism.contrasts import contrast as contrast_module
from qkprism.errors import QKPrismError

BOXES = "The hat is in Box [-O], the jam is in Box [+Z]. The jam is in [?Box]"
PLAIN = "The hat is in Box O, the jam is in Box Z. The jam is in Box"
TWINS = ("the jam is in Box [+Z]. The jam is in Box", "the pen is in Box [+Z]. The pen is in Box")

bracketed = st.text(alphabet=st.sampled_from("ab []+-?*é\n"), min_size=1, max_size=30)
any_text = st.one_of(bracketed, st.text(min_size=1, max_size=30))
names = st.text(alphabet="abcde", min_size=1, max_size=4)
numbers = st.floats(allow_nan=False, allow_infinity=False)
labels = st.dictionaries(names, st.one_of(names, st.integers(-9, 9), numbers, st.booleans()), max_size=2)


@st.composite
def drawn_texts(draw: st.DrawFn, *, plain: bool) -> tuple[str, list[tuple[str, int, int, dict[str, Any]]]]:
    """A text with marks anywhere; without labels if plain. Classes are built outside: checks of types draw numbers."""
    text = draw(any_text)
    ends = sorted(draw(st.sets(st.integers(0, len(text)), min_size=2, max_size=8)))
    return text, [(draw(st.sampled_from("+-*?.")), *ends, {} if plain else draw(labels)) for ends in pairwise(ends)]


weights = st.floats(min_value=1e-30, max_value=1e30)
some_text = st.one_of(drawn_texts(plain=True), drawn_texts(plain=False))
drawn_examples = st.tuples(some_text, st.one_of(st.none(), some_text), weights, st.one_of(st.none(), names), labels)


def made_text(drawn: Any) -> Text:
    """The text of what was drawn; the first negative key that was drawn as one is the target."""
    first = next((start for sign, start, *_ in drawn[1] if sign == "*"), None)
    spans = [(sign, Span(start, end, labels, sign == "*" and start == first)) for sign, start, end, labels in drawn[1]]
    query, positive, negative = ([span for sign, span in spans if sign in side] for side in ("?", "+", "-*"))
    return Text(drawn[0], query[0] if query else None, tuple(positive), tuple(negative))


def made_example(drawn: Any) -> Example:
    """The example of what was drawn, if it has both sides."""
    text, twin = made_text(drawn[0]), drawn[1] and made_text(drawn[1])
    assume(text.positive and (twin.positive if twin else text.negative))
    return Example(text, twin, *drawn[2:])


def write(folder: Path, *lines: Any, name: str = "given.jsonl") -> Path:
    """A file of lines: strings as they are, everything else as JSON."""
    path = folder / name
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def refused(folder: Path, *lines: Any) -> str:
    """The reader's words about the last of these lines, after file and line."""
    path = write(folder, *lines)
    with pytest.raises(QKPrismError) as caught:
        Contrast.read(path)
    message = str(caught.value)
    assert "\n" not in message
    where = f"{path}:{len(lines)}: "
    assert message.startswith(where)
    return message.removeprefix(where)


# Markup


def test_markup__marks_characters() -> None:
    text = Text.parse(BOXES)
    assert text == Text(PLAIN, query=Span(56, 59), positive=(Span(39, 40),), negative=(Span(18, 19),))


@settings(deadline=None)
@given(drawn_texts(plain=True))
@example(("a[[+", [("+", 1, 3, {})]))
@example(("a]b", [("+", 1, 2, {})]))
def test_markup__parse_inverts_markup(drawn: Any) -> None:
    text = made_text(drawn)
    assume(not text.beyond_markup())
    assert Text.parse(text.markup()) == text


@settings(deadline=None)
@given(bracketed)
def test_markup__what_parses_is_a_fixed_point(markup: str) -> None:
    try:
        text = Text.parse(markup)
    except QKPrismError:
        assume(False)
    assume(not text.beyond_markup())
    assert Text.parse(text.markup()) == text


@settings(deadline=None)
@given(st.text(alphabet="ab]+-?é\n", min_size=1))
def test_markup__text_without_opening_brackets_is_literal(text: str) -> None:
    assert Text.parse(text) == Text(text)


@pytest.mark.parametrize(
    ("markup", "text", "span"),
    [
        ("x[0] = [+Z]", "x[0] = Z", (7, 8)),
        ("x[[+1] [+Z]", "x[+1] Z", (6, 7)),
        ("[[[+Z]", "[Z", (1, 2)),
        ("[+a]]]", "a]", (0, 2)),
        ("[+a[[b]", "a[b", (0, 3)),
        ("[+a[b]", "a[b", (0, 3)),
        ("]]]] [+Z]", "]]]] Z", (5, 6)),
        ("[++]", "+", (0, 1)),
        ("[+[[+Z]", "[+Z", (0, 3)),
    ],
)
def test_markup__literal_brackets(markup: str, text: str, span: tuple[int, int]) -> None:
    assert Text.parse(markup) == Text(text, positive=(Span(*span),))


@pytest.mark.parametrize(
    ("markup", "text", "target"),
    [
        ("[-*Z]", "Z", True),
        ("[-**]", "*", False),
        ("[-***]", "*", True),
        ("[-**a*]", "*a*", False),
        ("[-*a*]", "a*", True),
        ("[-a]", "a", False),
    ],
)
def test_markup__a_star_marks_the_target(markup: str, text: str, target: bool) -> None:
    found = Text.parse(f"{markup} [+*b]")
    assert found == Text(f"{text} *b", None, (Span(len(text) + 1, len(text) + 3),), (Span(0, len(text), {}, target),))
    assert found.markup() == f"{markup} [+*b]"
    assert ("<sup>-*</sup>" in Contrast.from_texts("a", [found.markup()])._repr_html_()) == target


def test_target__is_the_marked_key_or_the_only_negative_one() -> None:
    for markup, target in (("[-a] [+c]", "a"), ("[-a] [-*b] [+c]", "b"), ("[-a] [-b] [+c]", None)):
        example = Example.parse(markup)
        span = example.target
        assert (None if span is None else example.text.text[span.start : span.end]) == target


@pytest.mark.parametrize(
    ("markup", "reason"),
    [
        ("in Box [+Z. The", "the mark '[+Z. The' is never closed"),
        ("in Box [+Z]]", "the mark '[+Z]' is never closed"),
        ("in [-Box [+Z]]", "opens inside a [- mark; marks cannot nest"),
        ("unknown [?] in Box", "the mark [?] before ' in Box' is empty"),
        ("[?a] [?b]", "2 queries are marked"),
        ("in Box [-*] a", "the mark [-*] before ' a' is empty; a star that is a key is '[-**]'"),
        ("[-*a] [-*b] [+c]", "2 keys are marked as target"),
        ("", "the text is empty"),
        ("\ud800", "surrogate"),
        (3, "a text with marks is a string, not 3"),
    ],
)
def test_markup__refuses(markup: str, reason: str) -> None:
    with pytest.raises(QKPrismError) as caught:
        Text.parse(markup)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (Text("ab", positive=(Span(0, 1, unit="token"),)), "token spans"),
        (Text("ab", positive=(Span(0, 1, labels={"order": 1}),)), "labels"),
        (Text("ab", positive=(Span(0, 2), Span(1, 2))), "overlapping"),
        (Text("a]", positive=(Span(0, 1),)), "before a literal ']'"),
    ],
)
def test_markup__says_what_it_cannot_say(text: Text, reason: str) -> None:
    with pytest.raises(QKPrismError, match="markup cannot say") as caught:
        text.markup()
    assert reason in str(caught.value)


# Spans, texts and examples


@pytest.mark.parametrize("bounds", [(3, 3), (4, 3), (-1, 2)])
def test_span__is_in_order(bounds: Any) -> None:
    with pytest.raises(QKPrismError, match="0 <= start < end"):
        Span(*bounds)


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        ({"positive": (Span(1, 3),)}, "the positive key [1, 3] reaches beyond the text, which has 2 characters"),
        ({"query": Span(0, 9)}, "the query [0, 9] reaches beyond"),
        (
            {"positive": (Span(0, 1),), "negative": (Span(0, 1),)},
            "[0, 1] is marked as a positive and as a negative key",
        ),
        ({"positive": (Span(0, 1), Span(0, 1))}, "marked twice"),
        ({"negative": (Span(0, 1, target=True), Span(1, 2, target=True))}, "2 keys are marked as target"),
        ({"positive": (Span(0, 1, target=True),)}, "the target is a negative key"),
    ],
)
def test_text__refuses(marks: Any, reason: str) -> None:
    with pytest.raises(QKPrismError) as caught:
        Text("ab", **marks)
    assert reason in str(caught.value)


def test_text__keeps_keys_in_the_order_of_the_text() -> None:
    spans = (Span(0, 1), Span(1, 2))
    assert Text("ab", positive=spans[::-1]) == Text("ab", positive=spans)


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, 1e-40, 10**400])
def test_example__weight_is_finite_and_positive(weight: Any) -> None:
    with pytest.raises(QKPrismError, match="weight is a finite number above 0"):
        Example.parse(BOXES, weight=weight)


@pytest.mark.parametrize(
    ("text", "twin", "reason"),
    [
        ("Box [-O]", None, "no positive key"),
        ("Box [+O]", None, "no negative key"),
        ("Box O", None, "no positive key"),
        ("Box [+O]", "Box Z", "the twin has no key"),
        ("Box [-O]", "Box [+Z]", "no positive key"),
    ],
)
def test_example__refuses_an_empty_side(text: str, twin: str | None, reason: str) -> None:
    with pytest.raises(QKPrismError, match=reason):
        Example.parse(text, twin=twin)


def test_example__source_is_not_part_of_it() -> None:
    assert Example.parse(BOXES, source="a:1") == Example.parse(BOXES, source="b:2")


def test_example__texts_are_text_and_twin() -> None:
    single, pair = Example.parse(BOXES), Example.parse(TWINS[0], twin=TWINS[1])
    assert single.texts == (single.text,)
    assert pair.texts == (pair.text, pair.twin)


# Contrasts


@given(name=names, drawn=st.lists(drawn_examples, min_size=1, max_size=3), description=any_text)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_contrast__read_inverts_write(name: str, drawn: list[Any], description: str, tmp_path: Path) -> None:
    contrast = Contrast(name, tuple(map(made_example, drawn)), description)
    path = tmp_path / "written.jsonl"
    contrast.write(path)
    again = Contrast.read(path)
    assert again == contrast
    assert again.digest == contrast.digest
    assert [file.name for file in tmp_path.iterdir()] == ["written.jsonl"]


def test_written__is_a_contrast_like_any_other_and_keeps_no_texts(tmp_path: Path) -> None:
    made: list[int] = []

    def write(number: int) -> Example:
        made.append(number)
        return Example.parse(f"in Box [-O], in Box [+{number}]. In", source=f"own:{number}")

    lazy = Contrast("own", Written(tuple(range(6)), write))
    assert len(lazy) == 6
    assert made == []
    kept = Contrast("own", tuple(lazy))
    assert made == [*range(6)]
    assert lazy == kept
    assert hash(lazy) == hash(kept)
    assert lazy.digest == kept.digest
    assert lazy[2] == kept[2]
    assert lazy[2] is not lazy[2]
    assert lazy[-1].source == "own:5"
    assert (lazy[1:3].examples, lazy[1:3].digest) == (kept[1:3].examples, kept[1:3].digest)
    assert isinstance(lazy[1:3].examples, Written)
    assert lazy + kept == kept + lazy == kept + kept
    assert lazy != Contrast("own", kept.examples[:5])
    lazy.write(tmp_path / "own.jsonl")
    assert Contrast.read(tmp_path / "own.jsonl") == kept


def test_contrast__reads_the_documented_format(tmp_path: Path) -> None:
    fields = {
        "text": PLAIN,
        "query": [56, 59],
        "positive": [{"span": [39, 40], "labels": {"order": 1, "entity": "jam"}}],
        "negative": [{"span": [18, 19], "labels": {"order": 0, "entity": "hat"}, "target": True}],
        "weight": 2.0,
        "group": "a",
    }
    twin = {"text": TWINS[0], "twin": TWINS[1]}
    metadata = {"contrast": "boxes", "description": "which box"}
    contrast = Contrast.read(write(tmp_path, metadata, {"text": BOXES, "labels": {"entity": "jam"}}, "", fields, twin))
    positive = (Span(39, 40, {"order": 1, "entity": "jam"}),)
    negative = (Span(18, 19, {"order": 0, "entity": "hat"}, target=True),)
    assert contrast == Contrast(
        "boxes",
        (
            Example.parse(BOXES, labels={"entity": "jam"}),
            Example(Text(PLAIN, Span(56, 59), positive, negative), weight=2, group="a"),
            Example.parse(TWINS[0], twin=TWINS[1]),
        ),
        "which box",
    )
    assert [example.source for example in contrast] == [f"{tmp_path / 'given.jsonl'}:{line}" for line in (2, 4, 5)]
    assert contrast.key_labels == ("order", "entity")


def test_contrast__fields_make_the_text_literal(tmp_path: Path) -> None:
    line = {"text": "x[+1] y", "positive": [0, 1], "negative": {"tokens": [3, 4]}}
    (example,) = Contrast.read(write(tmp_path, line))
    assert example.text == Text("x[+1] y", positive=(Span(0, 1),), negative=(Span(3, 4, unit="token"),))


def test_contrast__a_twin_has_its_own_form(tmp_path: Path) -> None:
    fields = {"text": "in Box Z", "positive": [[7, 8]]}
    first = Contrast.read(write(tmp_path, {"text": "in Box [+Z]", "twin": fields}))
    second = Contrast.read(write(tmp_path, fields | {"twin": "in Box [+Z]"}))
    assert first == second


def test_contrast__name_is_the_stem_without_metadata(tmp_path: Path) -> None:
    assert Contrast.read(write(tmp_path, {"text": BOXES}, name="boxes.jsonl")).name == "boxes"
    assert Contrast.read(write(tmp_path, {"description": "d"}, {"text": BOXES}, name="b.jsonl")).description == "d"


def test_contrast__drops_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "marked.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"text": BOXES}).encode())
    assert Contrast.read(path).examples == (Example.parse(BOXES),)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"text": BOXES, "wieght": 2}, "unknown field 'wieght', the nearest is 'weight' (allowed: text, query,"),
        ({"text": BOXES, "twin": {"text": BOXES, "weight": 2}}, "unknown field 'weight', the nearest is"),
        ({"text": "ab", "positive": [{"spam": [0, 1]}]}, "unknown field 'spam', the nearest is 'span'"),
        ({"txet": "ab"}, "unknown field 'txet', the nearest is 'text'"),
        ({"weight": 1}, "the field text is missing; the fields given are weight"),
        ({}, "the field text is missing; the fields given are none"),
        ({"text": 3}, "text is a string, not 3"),
        ({"text": "ab", "positive": 3}, "positive is a list of spans such as [[39, 40]], not 3"),
        ({"text": "ab", "positive": [0, 1, 2]}, "a span is [start, end] in whole numbers, not [0, 1, 2]"),
        ({"text": "ab", "positive": [[0.0, 1]]}, "a span is [start, end] in whole numbers, not [0.0, 1]"),
        ({"text": "ab", "positive": [[False, True]]}, "a span is [start, end] in whole numbers, not [False, True]"),
        ({"text": "ab", "positive": ["ab"]}, "a span is [start, end] in whole numbers, not 'ab'"),
        ({"text": "ab", "positive": [{"span": [0, 1], "target": 1}]}, "target is true or false, not 1"),
        ({"text": "ab", "positive": [{"span": [0, 1], "tokens": [0, 1]}]}, "one of the fields span and tokens"),
        ({"text": "ab", "positive": [[0, 1]], "negative": [[1, 5]]}, "the negative key [1, 5] reaches beyond the text"),
        ({"text": "ab", "positive": [[0, 1]], "negative": [[0, 1]]}, "a positive and as a negative key"),
        ({"text": "ab", "positive": [[0, 1]], "negative": [[1, 1]]}, "0 <= start < end, not [1, 1]"),
        ({"text": "ab", "query": [0, 1]}, "no positive key is marked"),
        ({"text": TWINS[0], "twin": "the pen"}, "the twin has no key"),
        ({"text": TWINS[0], "twin": 3}, "text is a string, not 3"),
        ({"text": BOXES, "weight": 0}, "weight is a finite number above 0, from 1e-30 to 1e30, not 0"),
        ({"text": BOXES, "weight": None}, "weight is a number, not None"),
        ({"text": BOXES, "weight": True}, "weight is a number, not True"),
        ({"text": BOXES, "weight": 10**400}, "weight is a finite number above 0"),
        ({"text": BOXES, "group": 3}, "group is a string, not 3"),
        ({"text": BOXES, "labels": [1]}, "labels are names with values"),
        ({"text": BOXES, "labels": {"a": None}}, "the label 'a' is a string, a number, true or false, not None"),
        ({"text": "the [+Z"}, "is never closed"),
        ('{"text": "a", "text": "b"}', "the field 'text' is given twice"),
        ('{"text": "a", "weight": NaN}', "NaN is not a number that JSON has"),
        ('{"text": "[+a] [-b]", "weight": 1e999}', "weight is a finite number above 0, from 1e-30 to 1e30, not inf"),
        ('{"text": "[+a] [-b]", "weight": ' + "1" * 5000 + "}", "broken JSON"),
        ('{"text": "a"', "broken JSON at column 13"),
        ("[" * 100_000, "broken JSON"),
        ('"text"', "a line is a JSON object"),
        ({"contrast": "again"}, "metadata stands once, on the first line"),
    ],
)
def test_contrast__reader_names_file_line_and_reason(tmp_path: Path, line: Any, reason: str) -> None:
    assert reason in refused(tmp_path, {"contrast": "boxes"}, {"text": BOXES}, line)


@pytest.mark.parametrize("lines", [[], [""], [{"contrast": "boxes"}]])
def test_contrast__refuses_a_file_without_examples(tmp_path: Path, lines: list[Any]) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(QKPrismError, match=r"given\.jsonl:1: the file has no examples"):
        Contrast.read(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"text": "\xe9"}', r":1: not UTF-8: byte 11 of the line is 0xe9"),
        ('{"text": "a"}'.encode("utf-16"), ":1: the file is UTF-16; save it as UTF-8"),
        (b'{"contrast": ""}\n{"text": "[+a] [-b]"}', ":1: the name of a contrast is one line of printable text"),
        (b'{"contrast": 3}\n{"text": "[+a] [-b]"}', ":1: contrast is a string, not 3"),
        (b'{"name": "a"}\n{"text": "[+a] [-b]"}', ":1: unknown field 'name'"),
    ],
)
def test_contrast__reader_refuses_the_file(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "given.jsonl"
    path.write_bytes(content)
    with pytest.raises(QKPrismError, match=reason):
        Contrast.read(path)


def test_contrast__missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(QKPrismError, match=r"none\.jsonl cannot be read: No such file"):
        Contrast.read(tmp_path / "none.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(QKPrismError, match="cannot be written: File exists"):
        Contrast.from_texts("a", [BOXES]).write(tmp_path / "file" / "boxes.jsonl")


def test_contrast__a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept.jsonl"
    contrast = Contrast.from_texts("kept", [BOXES])
    contrast.write(path)
    before = path.read_bytes()

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(QKPrismError, match="No space left"):
        Contrast.from_texts("other", [BOXES]).write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_contrast__digest_is_of_content_not_of_form(tmp_path: Path) -> None:
    fields = {"query": [56, 59], "text": PLAIN, "negative": [{"span": [18, 19]}], "positive": [[39, 40]], "weight": 1}
    marked = Contrast.read(write(tmp_path, {"text": BOXES}, name="boxes.jsonl"))
    spelled = Contrast.read(write(tmp_path, {"contrast": "boxes", "description": "d"}, "", fields))
    assert marked.digest == spelled.digest == Contrast.from_texts("boxes", [BOXES]).digest
    assert len(marked.digest) == 64


@pytest.mark.parametrize(
    "other",
    [
        Contrast.from_texts("crates", [BOXES]),
        Contrast.from_texts("boxes", [BOXES, BOXES]),
        Contrast("boxes", (Example.parse(BOXES, weight=2),)),
        Contrast("boxes", (Example.parse(BOXES, group="a"),)),
        Contrast("boxes", (Example.parse(BOXES, labels={"a": 1}),)),
        Contrast("boxes", (Example.parse(BOXES, twin=BOXES),)),
        Contrast("boxes", (Example.parse(BOXES.replace("?", "")),)),
    ],
)
def test_contrast__digest_tells_contrasts_apart(other: Contrast) -> None:
    assert other.digest != Contrast.from_texts("boxes", [BOXES]).digest


def test_contrast__is_a_sequence() -> None:
    contrast = Contrast.from_texts("boxes", [BOXES.replace("jam", name) for name in ("jam", "pen", "cup")])
    assert len(contrast) == 3
    assert list(contrast) == list(contrast.examples)
    assert contrast[1] == contrast.examples[1]
    assert contrast[:2] == Contrast("boxes", contrast.examples[:2])
    assert contrast[:1] + contrast[1:] == contrast
    assert repr(contrast) == "Contrast('boxes', 3 examples)"


def test_contrast__pools_under_both_names() -> None:
    pooled = Contrast.from_texts("a", [BOXES]) + Contrast.from_texts("b", [BOXES])
    assert (pooled.name, len(pooled)) == ("a+b", 2)


def test_contrast__without_examples_is_refused() -> None:
    with pytest.raises(QKPrismError, match="'boxes' has no examples"):
        Contrast("boxes", ())


def test_contrast__from_texts_names_the_text() -> None:
    with pytest.raises(QKPrismError, match="boxes:2: no negative key"):
        Contrast.from_texts("boxes", [BOXES, "Box [+Z]"])


def test_contrast__page_escapes_and_shows_a_few() -> None:
    hostile = "<script>alert(1)</script> [+<b>] & [-Z] [?Box]"
    contrast = Contrast("<i>", tuple(Example.parse(hostile, twin=hostile) for _ in range(9)), "<u>")
    page = contrast._repr_html_()
    assert not any(tag in page for tag in ("<script", "<i>", "<u>", "> & "))
    assert "&lt;b&gt;<sup>+</sup>" in page
    assert "and 4 more" in page
    assert page.count("<li") == 5


def test_contrast__reads_a_long_file(tmp_path: Path) -> None:
    path = write(tmp_path, *[json.dumps({"text": BOXES})] * 2_000)
    assert len(Contrast.read(path)) == 2_000


# Labels that many spans share


def test_labels__what_is_equal_is_shared_and_cannot_be_changed() -> None:
    labels = Span(0, 1, {"x": 1, "y": "a"}).labels
    assert Span(4, 5, {"x": 1, "y": "a"}).labels is labels
    assert isinstance(labels, dict)
    for change in (
        lambda: labels.update(z=1),
        lambda: labels.pop("x"),
        lambda: labels.popitem(),
        lambda: labels.clear(),
        lambda: labels.setdefault("z", 1),
        lambda: labels.__setitem__("x", 2),
        lambda: labels.__delitem__("x"),
        lambda: labels.__ior__({"x": 2}),
    ):
        with pytest.raises(QKPrismError, match="labels are read only"):
            change()
    assert labels == {"x": 1, "y": "a"}
    assert labels | {"x": 2} == {"x": 2, "y": "a"}


def test_labels__are_kept_no_longer_than_what_has_them() -> None:
    span = Span(0, 1, {"only": "here and for a while"})
    kept = weakref.ref(span.labels)
    assert kept() is not None
    del span
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_labels__are_copied_and_pickled(again: Callable[[Any], Any]) -> None:
    example = Example(Text("ab", None, (Span(0, 1, {"x": 1}),), (Span(1, 2),)), labels={"y": "b"})
    assert again(example) == example
    with pytest.raises(QKPrismError, match="labels are read only"):
        again(example).labels["z"] = 1


def test_labels__do_not_depend_on_what_was_labelled_before() -> None:
    class Name(StrEnum):
        X = "x"

    def digest(labels: Any) -> str:
        return Contrast("one", [Example(Text("ab", None, (Span(0, 1, labels),), (Span(1, 2),)))]).digest

    assert digest({"x": -0.0}) == digest({"x": 0.0})
    assert len({digest({"x": value}) for value in (0, 0.0, False)}) == 3
    assert [type(name) for name in Span(0, 1, {Name.X: Name.X, "only here": 1}).labels] == [str, str]
    assert [type(value) for value in Span(0, 1, {"x": Name.X, "only there": 1}).labels.values()] == [str, int]
    assert digest({Name.X: 1.0}) == digest({"x": 1.0})


def test_read__a_large_file_is_read_again_when_examples_are_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "boxes.jsonl"
    lines = [
        f'{{"text": "é in Box [-O], in Box [+{letter}]. In [?Box]", "weight": {i + 1}}}'
        for i, letter in enumerate("XYZ")
    ]
    path.write_text("\n".join(["\ufeff" + '{"contrast": "mine"}', "", *lines]), encoding="utf-8")
    small = Contrast.read(path)
    monkeypatch.setattr(contrast_module, "LARGE", 0)
    large = Contrast.read(path)
    assert isinstance(large.examples, Written)
    assert tuple(large) == tuple(small)
    assert (large.name, large.digest) == (small.name, small.digest)
    assert [example.source for example in large[1:]] == [f"{path}:4", f"{path}:5"]
    path.write_text(path.read_text() + "\n" + lines[0])
    with pytest.raises(QKPrismError, match=r"boxes\.jsonl has changed since it was read"):
        large[0]
    path.write_text("\n".join([*lines, "{"]))
    with pytest.raises(QKPrismError, match=r"boxes\.jsonl:4: broken JSON"):  # all of it is checked at once
        Contrast.read(path)


def test_stream__holds_places_alone_and_removes_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = []

    def examples():
        for i in range(5):
            made.append(i)
            yield Example.parse(f"in Box [-O], in Box [+{'UVXYZ'[i]}]. In [?Box]", weight=i + 1.0)

    streamed = Contrast.stream("mine", examples())
    assert made == [*range(5)]
    assert tuple(streamed) == tuple(Contrast("mine", tuple(examples())))
    assert streamed[3].source == "mine:4"
    assert len([*tmp_path.iterdir()]) == 1
    part = streamed[2:]
    del streamed
    gc.collect()
    assert len(part) == 3
    assert part[0].weight == 3
    del part
    gc.collect()
    assert not [*tmp_path.iterdir()]
    with pytest.raises(QKPrismError, match="made of examples"):
        Contrast.stream("mine", ["in Box [+O]"])
    with pytest.raises(QKPrismError, match="no examples"):
        Contrast.stream("mine", [])
    assert not [*tmp_path.iterdir()]
