"""Figures of effects, attributions and validations: the numbers of the result, texts escaped, gaps drawn as such."""

import ast
import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest
import torch

from drawn import note, one, traces
from qkprism import QKPrismError
from qkprism.controls import BY_NAME, CONTROLS, RIVALS, SHARED
from qkprism.core.rows import MEASURES as ROW_MEASURES
from qkprism.core.terms import POSITION_BIAS, RESIDUAL, SOFT_CAP
from qkprism.figures.attribution import OTHER_TERMS, BarsView, attribution_figure, shown_token, term_color
from qkprism.figures.attributions import attributions_figure
from qkprism.figures.effects import ALL_EVIDENCE, MEASURES, effects_figure, is_combination, shown_heads
from qkprism.figures.theme import FEATURE_COLORS, INK, axis, feature_color, number
from qkprism.figures.validation import METHOD_COLORS, series_of, validation_figure
from qkprism.heads import Head
from qkprism.results.attribution import Attribution, Attributions
from qkprism.results.effects import GIVEN, Effects, Entry
from qkprism.results.validation import TruthCheck, Validation
from qkprism.subspaces.comparison import METHODS
from qkprism.subspaces.comparison import combined as combinations_of
from qkprism.verbs.outcomes import MEASURES as OUTCOME_MEASURES
from qkprism.verbs.truths import DRAWN, PERMUTED, SEQUENTIAL, WHOLE

EVIL = "<script>alert(1)</script> <b>a</b> & $x^2$"
NAN = math.nan


def effects_of(names=("order", "lexical"), methods=("contrast", "raw"), heads=("L1H2", "L3H4"), targets=(GIVEN,)):
    """Effects in which every number is another one, and every feature beats every control."""
    entries = []
    for target in targets:
        entries += [Entry(target, "", "", "none"), Entry(target, "", "", "full")]
        entries += [
            Entry(target, "+".join(group), method, control)
            for method in methods
            for control in ("feature", *(rival.name for rival in RIVALS))
            for group in combinations_of(names)
        ]
    size, g = (len(entries), len(heads)), torch.Generator().manual_seed(0)
    draws = torch.tensor([10 if BY_NAME[e.control].drawn else 1 for e in entries])
    return Effects(
        entries=tuple(entries),
        heads=tuple(heads),
        measures=ROW_MEASURES,
        compared="shift",
        values=torch.rand(len(ROW_MEASURES), *size, generator=g, dtype=torch.float64),
        errors=0.1 * torch.rand(len(ROW_MEASURES), *size, generator=g, dtype=torch.float64),
        spread=torch.where(draws[:, None] > 1, torch.rand(size, generator=g, dtype=torch.float64), NAN),
        gains=torch.rand(size, generator=g, dtype=torch.float64),
        gain_errors=torch.full(size, 0.2, dtype=torch.float64),
        advantage=2.0 + torch.rand(size, generator=g, dtype=torch.float64),
        advantage_error=torch.full(size, 0.1, dtype=torch.float64),
        ranks=torch.arange(size[0])[:, None].expand(size),
        draws=draws,
        n=torch.full((size[0],), 77),
        provenance={"model": "tiny"},
    )


def attribution_of(n=12, terms=("order", "lexical", RESIDUAL), method="oblique", **changes):
    values = torch.randn(len(terms), n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = values.sum(0)
    made = Attribution(
        head=Head(1, 2),
        tokens=tuple(f" t{i}" for i in range(n)),
        positions=tuple(range(n)),
        query=n - 1,
        terms=tuple(terms),
        values=values,
        logits=logits,
        attention=logits.softmax(0),
        method=method,
        marks={i: "positive" if i == 2 else "negative" for i in (2, 5) if i < n},
        angles={"order & lexical": (34.4, 80.0)},
        condition=3.21,
        provenance={"model": "tiny"},
    )
    return replace(made, **changes)


TWO = (Head(1, 2), Head(3, 4))


def attributions_of(heads=TWO, terms=("order", "lexical", RESIDUAL), **changes):
    g, size = torch.Generator().manual_seed(0), (len(heads), len(terms))
    names = ("gap", "gap_share", "variance", "variance_marked")
    made = Attributions(
        heads=tuple(heads),
        terms=tuple(terms),
        values={name: torch.randn(size, generator=g, dtype=torch.float64) for name in names},
        errors={name: 0.1 * torch.rand(size, generator=g, dtype=torch.float64) for name in names},
        n=50,
        method=dict.fromkeys(heads, "oblique"),
        condition=dict.fromkeys(heads, 2.0),
        order_spread=dict.fromkeys(heads),
        angles={head: {} for head in heads},
        provenance={"model": "tiny"},
    )
    return replace(made, **changes)


NO_EDIT = dict.fromkeys(("logit", "logit_error", "tv_pair", "tv_pair_error", "tv", "tv_error", "floor"), NAN)


def check_of(i=0, *, features="", factor="order", head="L1H2", method="raw", **changes):
    made = TruthCheck(
        features,
        factor,
        Head.parse(head),
        method,
        0.4 + 0.01 * i,
        0.02,
        1.1 + i,
        1.0 + i,
        0.05,
        0.1,
        0.03,
        0.9,
        0.05,
        0.1,
        0.04,
        60,
        logit=0.3 + 0.01 * i,
        logit_error=0.01,
        tv_pair=0.35 + 0.01 * i,
        tv_pair_error=0.015,
        floor=0.2,
    )
    return made._replace(**changes)


def validation_of(factors=("order", "lexical"), methods=("contrast", "raw", SEQUENTIAL), heads=3, sets=("",)):
    checks = [
        check_of(i, features=name, factor=factor, head=f"L{i}H0", method=method)
        for i in range(heads)
        for name in sets
        for factor in factors
        for method in methods
    ]
    return Validation(tuple(c._replace(**NO_EDIT) if c.method == SEQUENTIAL else c for c in checks))


def every_text(fig):
    """All strings of a figure that plotly shows."""
    texts = [fig.layout.title.text or "", *(a.text for a in fig.layout.annotations)]
    for trace in fig.data:
        texts.append(trace.name or "")
        for field in ("hovertext", "text"):
            texts.extend(getattr(trace, field, None) or [])
    for axes in (fig.select_xaxes(), fig.select_yaxes()):
        for own in axes:
            texts.extend([own.title.text or "", *(own.ticktext or [])])
    return texts


def assert_plain(fig):
    for text in every_text(fig):
        assert not any(bad in text for bad in ("<script", "<b>a</b>", "$", "<i>")), text
        assert "nan" not in text.lower().replace("banana", ""), text


def finite_ranges(fig):
    axes = [*fig.select_xaxes(), *fig.select_yaxes()]
    return all(math.isfinite(end) for own in axes for end in own.range or [])


# --- effects ---------------------------------------------------------------------------------------------------------


def test_effects_figure__knows_every_measure():
    assert set(MEASURES) == {*ROW_MEASURES, *OUTCOME_MEASURES}


@pytest.mark.parametrize("measure", ["shift", "logit_change"])
def test_effects_figure__marks_carry_means_and_errors(measure):
    effects = effects_of()
    fig = effects.plot(measure)
    at = effects.measures.index(measure)
    groups = [(f, m) for m in effects.methods for f in effects.features]
    for control in CONTROLS:
        if control.shared:
            continue
        rows = [effects.entries.index(Entry(GIVEN, f, m, control.name)) for f, m in groups]
        drawn = [t for t in traces(fig, name=control.title, legendgroup=control.name) if t.y[0] is not None]
        for head, trace in enumerate(drawn):
            assert list(trace.y) == effects.values[at, rows, head].tolist()
            assert list(trace.error_y.array) == effects.errors[at, rows, head].tolist()
        assert len(drawn) == 2
    assert list(fig.layout.xaxis.ticktext) == [feature for feature, _ in groups]
    assert fig.layout.yaxis.title.text == MEASURES[measure]


def test_effects_figure__lines_are_no_edit_and_whole_key():
    effects = effects_of()
    fig = effects_figure(effects, "shift", GIVEN)
    for end in SHARED:
        row = effects.entries.index(Entry(GIVEN, "", "", end.name))
        drawn = [trace for trace in traces(fig, name=end.title) if len(trace.x) > 1]
        assert len(drawn) == 2
        for head, trace in enumerate(drawn):
            assert set(trace.y) == {float(effects.values[2, row, head])}
            assert trace.error_y.array is None


def test_effects_figure__features_have_their_colours_and_combinations_ink():
    effects = effects_of()
    trace = traces(effects.plot(), name="feature")[0]
    assert list(trace.marker.color) == [FEATURE_COLORS[0], FEATURE_COLORS[1], INK] * 2


@torch.inference_mode()  # in which tensors of results can be written
def test_effects_figure__gaussian_draws_fill_no_mark():
    effects = effects_of()
    effects.spread.mul_(0.1)
    effects.advantage[[entry.control == "gaussian" for entry in effects.entries]] = -1.0
    assert set(traces(effects.plot(), name="feature")[0].marker.symbol) == {"circle"}
    effects.advantage[:] = -1.0
    effects.advantage[[entry.control == "gaussian" for entry in effects.entries]] = 9.0
    fig = effects.plot()
    assert set(traces(fig, name="feature")[0].marker.symbol) == {"circle-open"}
    assert ALL_EVIDENCE == "permuted labels, key draws and key PCA"
    assert f"beats {ALL_EVIDENCE} by more than two" in note(fig, "caption").replace("<br>", " ")
    assert "Gaussian draws count for nothing" in note(fig, "caption").replace("<br>", " ")


@torch.inference_mode()  # in which tensors of results can be written
def test_effects_figure__filled_only_if_all_evidence_is_beaten():
    effects = effects_of()
    effects.spread.mul_(0.1)
    row = effects.entries.index(Entry(GIVEN, "lexical", "raw", "pca"))
    effects.advantage[row, 1] = 0.1
    first, second = traces(effects.plot(), name="feature")
    assert set(first.marker.symbol) == {"circle"}
    assert list(second.marker.symbol) == ["circle"] * 4 + ["circle-open", "circle"]


def test_effects_figure__spread_of_draws_is_shown_for_the_compared_measure_only():
    effects = effects_of(heads=("L1H2",))
    row = effects.entries.index(Entry(GIVEN, "order", "contrast", "permuted"))
    mean, spread = float(effects.values[2, row, 0]), float(effects.spread[row, 0])
    shown = one(effects.plot("shift"), name="spread")
    assert list(shown.y[:3]) == [mean - spread, mean + spread, None]
    assert not traces(effects.plot("flip"), name="spread")


def test_effects_figure__hover_tells_every_number():
    effects = effects_of()
    row = effects.entries.index(Entry(GIVEN, "order", "contrast", "keys"))
    text = traces(effects.plot(), name="key draws")[1].hovertext[0]
    for i, name in enumerate(effects.measures):
        assert f"{name} {number(float(effects.values[i, row, 1]), float(effects.errors[i, row, 1]))}" in text
    assert "<b>L3H4: key draws of order (contrast)</b>" in text
    assert f"rank {row}, n = 77, mean over 10 draws" in text
    assert f"standard deviation {number(float(effects.spread[row, 1]))}" in text
    assert number(float(effects.advantage[row, 1]), 0.1) in text
    assert f"gain over no edit in shift: {number(float(effects.gains[row, 1]), 0.2)}" in text


@torch.inference_mode()  # in which tensors of results can be written
def test_effects_figure__many_heads_are_those_with_the_largest_gain():
    effects = effects_of(names=("order",), methods=("raw",), heads=[f"L{i}H0" for i in range(20)])
    row = effects.entries.index(Entry(GIVEN, "order", "raw", "feature"))
    effects.gains[row] = torch.arange(20.0)
    effects.gains[row, 19] = NAN
    assert shown_heads(effects, GIVEN) == list(range(7, 19))
    fig = effects.plot()
    assert "Drawn: 12 of 20 heads" in note(fig, "caption")
    assert note(fig, "panel") == " ".join(f"<b>L{i}H0</b>" for i in range(7, 19))
    assert "Drawn" not in note(effects_of().plot(), "caption")


@torch.inference_mode()  # in which tensors of results can be written
def test_effects_figure__one_target_at_a_time():
    effects = effects_of(targets=(GIVEN, "order"))
    effects.values[:] = torch.arange(len(effects.entries))[:, None]
    half = len(effects.entries) // 2
    given = [y for t in effects.plot(target=GIVEN).data for y in t.y if y is not None and t.mode == "markers"]
    other = [y for t in effects.plot(target="order").data for y in t.y if y is not None and t.mode == "markers"]
    assert max(given) < half <= min(other)
    assert "targets that differ in order alone" in effects.plot(target="order").layout.title.text


def test_effects_figure__heads_together_are_one_panel():
    fig = effects_of(heads=("9 heads together",)).plot()
    assert note(fig, "panel") == "<b>9 heads together</b>"
    assert "9 heads together" in fig.layout.title.text


def test_effects_figure__grows_for_many_combinations():
    fig = effects_of(names=tuple("abcd"), methods=METHODS).plot()
    assert fig.layout.width > 1000
    assert len(fig.layout.xaxis.ticktext) == 15 * len(METHODS)


@pytest.mark.parametrize(("low", "high", "zero"), [(0.1, 0.9, True), (0.48, 0.53, False), (-3.0, -0.5, True)])
@torch.inference_mode()  # in which tensors of results can be written
def test_effects_figure__axis_has_all_marks_and_zero_if_it_is_near(low, high, zero):
    effects = effects_of(heads=("L1H2",))
    effects.values[:] = torch.linspace(low, high, len(effects.entries))[:, None]
    effects.errors[:] = effects.spread[:] = 0.0
    bottom, top = effects.plot().layout.yaxis.range
    assert bottom < low < high < top
    assert (bottom < 0 < top) == zero


@torch.inference_mode()  # in which tensors of results can be written
def test_effects_figure__nan_and_hostile_names_do_not_break_it():
    effects = effects_of(names=(EVIL, "b"), heads=("L1H2",))
    for name in ("values", "errors", "spread", "gains", "gain_errors", "advantage", "advantage_error"):
        getattr(effects, name)[:] = NAN
    hostile = replace(effects, provenance={"model": EVIL, "contrast": EVIL}, notes=(EVIL,) * 9, edit=EVIL)
    fig = hostile.plot()
    assert_plain(fig)
    assert finite_ranges(fig)
    assert "And 6 more such notes" in note(fig, "caption").replace("<br>", " ")
    fig.to_json()


def test_effects_figure__refuses_what_it_does_not_have():
    with pytest.raises(QKPrismError, match="Use one of attention_original"):
        effects_figure(effects_of(), "beauty", GIVEN)
    with pytest.raises(QKPrismError, match="There are: given"):
        effects_figure(effects_of(), "shift", "order")


def test_is_combination__names_may_have_plus_signs():
    names = ["a", "b", "c+d", "a+b", "a+c+d", "b+c+d", "a+b+c+d"]
    assert [name for name in names if not is_combination(name, names)] == ["a", "b", "c+d"]


# --- attribution -----------------------------------------------------------------------------------------------------


def test_attribution_figure__bars_are_the_terms_and_sum_to_the_logit():
    attribution = attribution_of(terms=("order", "lexical", RESIDUAL, SOFT_CAP, POSITION_BIAS))
    fig = attribution.plot()
    bars = [one(fig, type="bar", name=term) for term in attribution.terms]
    for bar, values in zip(bars, attribution.values, strict=True):
        assert list(bar.y) == values.tolist()
    assert list(one(fig, name="logit").y) == attribution.logits.tolist()
    assert list(one(fig, name="attention").y) == attribution.attention.tolist()
    assert fig.layout.barmode == "relative"
    colors = [bar.marker.color for bar in bars]
    assert colors[:2] == [feature_color(name, attribution.features) for name in attribution.features]
    assert colors[2:] == list(OTHER_TERMS.values())
    assert len(set(colors)) == 5


def test_other_terms__are_those_of_the_core():
    assert tuple(OTHER_TERMS) == (RESIDUAL, SOFT_CAP, POSITION_BIAS)
    assert not set(OTHER_TERMS.values()) & set(FEATURE_COLORS)


def test_term_color__is_that_of_the_run_whatever_the_order():
    run = {"features": {"contrasts": {"order": {}, "lexical": {}, "other": {}}}}
    assert term_color("lexical", ["lexical", "order"], run) == FEATURE_COLORS[1]
    assert term_color("lexical", ["lexical", "order"], {}) == FEATURE_COLORS[0]
    assert term_color("new", ["new"], run) == FEATURE_COLORS[0]
    assert term_color("new", ["new"], {"features": "a file"}) == FEATURE_COLORS[0]


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" jam", "␣jam"),
        ("\n\n", "↵↵"),
        ("\t", "⇥"),
        ("", "(empty)"),
        ("\x00", "\\x00"),
        ("<b>", "<b>"),
        ("日本", "日本"),
    ],
)
def test_shown_token__makes_spaces_visible(token, shown):
    assert shown_token(token) == shown


def test_attribution_figure__equal_and_hostile_tokens_keep_their_places():
    tokens = (" a", " a", "<b>", "$x$", EVIL, "\n")
    attribution = attribution_of(6, tokens=tokens, marks={0: EVIL, 3: "negative"}, notes=(EVIL,), head=EVIL)
    fig = attribution.plot()
    assert_plain(fig)
    ticks = fig.layout.xaxis3
    assert list(ticks.tickvals) == list(range(6))
    assert list(ticks.ticktext)[:4] == ["<b>␣a</b>", "␣a", "&lt;b&gt;", "<b>&#36;x&#36;</b>"]
    assert ticks.ticktext[5] == "<b>↵</b>"


def test_attribution_figure__names_the_query_the_marks_and_the_shares():
    attribution = attribution_of(method="sequential")
    fig = attribution.plot()
    title = fig.layout.title.text
    assert "L1H2 of tiny from the query at token 11 “␣t11”" in title
    assert "sequential split (order, then lexical)" in title
    for name, share in attribution.variance_shares().items():
        assert f"{name} {share:.0%}" in title or f"{name} {share:.1%}" in title
    assert list(one(fig, name="positive key").x) == [2]
    assert list(one(fig, name="negative key").x) == [5]
    assert list(one(fig, name="query").x) == [11]
    assert [s.name for s in fig.layout.shapes] == ["positive", "negative"]


def test_attribution_figure__positions_need_not_start_at_zero():
    attribution = attribution_of(4, positions=(7, 9, 10, 12), query=12, marks={9: "positive", 3: "negative"})
    fig = attribution.plot()
    assert list(one(fig, name="positive key").x) == [1]
    assert list(one(fig, name="query").x) == [3]
    assert not traces(fig, name="negative key")
    assert "token 9 “␣t1”" in one(fig, name="logit").hovertext[1]


def test_attribution_figure__caption_tells_overlap_and_warnings():
    words = note(attribution_of(notes=("The order matters.",)).plot(), "caption").replace("<br>", " ")
    assert "key subspaces: order &amp; lexical 34°; condition number 3.21" in words
    assert "The order matters." in words
    assert "query subspaces" in note(attribution_of(method="shapley").plot(), "caption").replace("<br>", " ")
    endless = note(attribution_of(condition=math.inf).plot(), "caption").replace("<br>", " ")
    assert "condition number infinite (they overlap" in endless


def test_attribution_figure__hover_tells_every_term():
    attribution = attribution_of()
    text = one(attribution.plot(), name="logit").hovertext[2]
    assert text.startswith("<b>token 2 “␣t2”</b> (positive key)")
    for term, value in zip(attribution.terms, attribution.values[:, 2].tolist(), strict=True):
        assert f"{term} {number(value)}" in text
    assert f"logit {number(float(attribution.logits[2]))}" in text


def test_attribution_figure__a_sink_is_cut_and_said_to_be():
    attribution = attribution_of(40)
    values = attribution.values.clone()
    values[2, 0] = 60.0
    sunk = replace(attribution, values=values, logits=values.sum(0))
    fig = sunk.plot()
    assert fig.layout.yaxis.range[1] < 10
    cut = traces(fig, name="cut")[0]
    assert list(cut.x) == [0]
    assert "␣t0 is cut: bars from" in cut.text[0]
    assert number(float(sunk.logits[0])) in cut.text[0]
    assert "Cut, so that the others can be read: token 0" in note(fig, "caption").replace("<br>", " ")
    assert list(one(fig, type="bar", name=RESIDUAL).y) == values[2].tolist()
    whole = attribution.plot()
    assert not len(traces(whole, name="cut")[0].x)
    assert "Cut" not in note(whole, "caption")


def test_view__spans_all_tokens_unless_a_few_flatten_the_others():
    even = BarsView([[1.0, -2.0, 3.0, 1.0, 2.0, 1.0]], [1.0, -2.0, 3.0, 1.0, 2.0, 1.0])
    assert even.span() == (-2.0, 3.0)
    assert even.cut() == []
    down = BarsView([[-90.0, -2.0, 3.0, 1.0, 2.0, 1.0]], [0.0] * 6)
    assert down.span() == (-2.0, 3.0)
    assert down.cut() == [0]
    assert down.range()[0] < -2.0
    flat = BarsView([[0.0] * 6], [0.0] * 6)
    assert flat.range()[0] < flat.range()[1]


def test_attribution_figure__150_tokens_make_it_wider():
    fig = attribution_of(150).plot()
    assert fig.layout.width == pytest.approx(150 * 16, abs=120)
    assert len(fig.layout.xaxis3.ticktext) == 150
    widest = max(len(line) for line in note(fig, "caption").split("<br>"))
    assert widest < 200
    many = attribution_of(2000).plot()
    assert many.layout.width <= 8000
    assert len(many.layout.xaxis3.ticktext) < 1000


@pytest.mark.parametrize("n", [1, 2])
@torch.inference_mode()  # in which tensors of results can be written
def test_attribution_figure__single_tokens_and_nan(n):
    fig = attribution_of(n, angles={}).plot()
    assert finite_ranges(fig)
    assert_plain(fig)
    missing = attribution_of(n)
    for name in ("values", "logits", "attention"):
        getattr(missing, name)[:] = NAN
    fig = attribution_figure(missing)
    assert finite_ranges(fig)
    assert_plain(fig)
    assert one(fig, name="logit").y[0] is None
    fig.to_json()


def test_attribution_figure__refuses_nothing():
    with pytest.raises(QKPrismError, match="no token to draw"):
        attribution_figure(attribution_of(0, query=0))


# --- attributions ----------------------------------------------------------------------------------------------------


def test_attributions_figure__bars_and_dots_carry_the_gap_and_its_error():
    attributions = attributions_of()
    fig = attributions.plot()
    gaps, errors = attributions.values["gap"], attributions.errors["gap"]
    for j, term in enumerate(attributions.terms):
        bar, dots = one(fig, type="bar", name=term), one(fig, type="scatter", name=term)
        assert list(bar.x) == list(dots.x) == gaps[:, j].tolist()
        assert list(dots.error_x.array) == errors[:, j].tolist()
        assert bar.marker.color == dots.marker.color == term_color(term, attributions.features, {})
        share = number(float(attributions.values["gap_share"][1, j]), float(attributions.errors["gap_share"][1, j]))
        assert f"share of the gap {share}" in bar.hovertext[1]
    assert list(one(fig, name="whole gap").x) == pytest.approx(gaps.sum(1).tolist())
    assert list(fig.layout.yaxis.ticktext) == ["L1H2", "L3H4"]


@pytest.mark.parametrize("n", [1, 40])
def test_attributions_figure__one_head_or_forty(n):
    heads = [f"L{i}H0" for i in range(n)]
    fig = attributions_of(heads).plot()
    assert len(fig.layout.yaxis.ticktext) == n
    assert fig.layout.height > 24 * n


def test_attributions_figure__caption_names_heads_whose_features_overlap():
    words = note(attributions_of(condition={TWO[0]: 2.0, TWO[1]: math.inf}).plot(), "caption").replace("<br>", " ")
    assert "In L3H4 the features overlap" in words
    assert "overlap" not in note(attributions_of().plot(), "caption")


@torch.inference_mode()  # in which tensors of results can be written
def test_attributions_figure__nan_and_hostile_names_do_not_break_it():
    attributions = attributions_of(terms=(EVIL, "b", RESIDUAL), notes=(EVIL,), provenance={"model": EVIL})
    for values in (*attributions.values.values(), *attributions.errors.values()):
        values[0] = NAN
    fig = attributions.plot()
    assert_plain(fig)
    assert one(fig, name="whole gap").x[0] is None
    fig.to_json()
    with pytest.raises(QKPrismError, match="no head to draw"):
        attributions_figure(attributions_of(()))


# --- validation ------------------------------------------------------------------------------------------------------


def test_validation_figure__every_method_of_the_library_has_its_colour():
    assert set(METHOD_COLORS) == {*METHODS, DRAWN, PERMUTED, SEQUENTIAL, WHOLE}


def test_validation_figure__a_row_a_factor_with_the_numbers_of_the_checks():
    validation = validation_of()
    fig = validation.plot()
    for row, factor in enumerate(validation.factors):
        for own in series_of(validation, factor):
            *distances, parts, slopes = (
                traces(fig, name=own.method, legendgroup=own.method, yaxis=axis("y", 5 * row + column))
                for column in (1, 2, 3, 4, 5)
            )
            for name, distance in zip(("logit", "tv_pair", "tv"), distances, strict=True):
                drawn = [trace for trace in distance if trace.hovertext]  # the legend is in the first panel too
                if own.method == SEQUENTIAL:
                    assert not drawn
                else:
                    assert list(drawn[0].y) == [getattr(check, name) for check in own.checks]
                    assert list(drawn[0].error_y.array) == [getattr(check, f"{name}_error") for check in own.checks]
                    assert drawn[0].marker.color == METHOD_COLORS[own.method]
            assert list(parts[0].x) == [check.true_part for check in own.checks]
            assert list(parts[0].y) == [check.part for check in own.checks]
            assert [list(t.y) for t in slopes] == [
                [check.slope_own for check in own.checks],
                [check.slope_other for check in own.checks],
            ]
            assert {t.marker.color for t in (*parts, *slopes)} == {METHOD_COLORS[own.method]}


def test_validation_figure__large_marks_are_of_the_heads_in_which_the_factor_matters():
    made = validation_of(factors=("order",), methods=("raw",))
    without = check_of(head="L9H0", tv=3.0, part=0.0, true_part=0.01, slope_own=9.0)
    fig = Validation((*made.checks, without)).plot()
    (logit, pair, distance), means = traces(fig, name="median of raw"), traces(fig, name="mean of raw")
    assert [one.y[0] for one in (logit, pair, distance)] == pytest.approx([0.31, 0.36, 0.41])
    assert [t.y[0] for t in means] == pytest.approx([2.1, 0.9, 0.1])
    assert means[0].x[0] == pytest.approx(2.0)
    dots = one(fig, name="raw", yaxis="y")
    assert distance.marker.size > dots.marker.size
    assert list(dots.marker.symbol) == ["circle"] * 3 + ["circle-open"]
    assert note(fig, "nearer") == "3/3 3/3 3/3"
    assert "order in 3 of 4 heads" in note(fig, "caption").replace("<br>", " ")
    assert "3 of 4 heads" in distance.hovertext[0]


def test_validation_figure__nothing_is_said_over_heads_in_which_nothing_matters():
    checks = tuple(check_of(head=head, true_part=0.01) for head in ("L0H0", "L1H0"))
    fig = Validation(checks).plot()
    assert not [t for t in fig.data if (t.name or "").startswith(("mean of", "median of"))]
    assert "order in 0 of 2 heads" in note(fig, "caption").replace("<br>", " ")


def test_validation_figure__reference_lines():
    shapes = validation_of(factors=("order",)).plot().layout.shapes
    assert [(s.name, s.y0, s.y1) for s in shapes if s.yref == "y"] == [("perfect", 0, 0), ("no edit", 1, 1)]
    assert [(s.name, s.y0) for s in shapes if s.yref == "y3"] == [("two keys alone", 0.2), ("no edit", 1)]
    (identity,) = [s for s in shapes if s.name == "identity"]
    assert (identity.x0, identity.x1) == (identity.y0, identity.y1)
    assert [(s.name, s.y0) for s in shapes if s.yref == "y5"] == [("truth", 1), ("truth", 0)]


def test_validation_figure__a_symbol_a_set_of_features():
    fig = validation_of(methods=("raw",), sets=("balanced", "paper")).plot()
    assert {s for t in traces(fig, name="raw balanced") for s in t.marker.symbol} == {"circle"}
    assert {s for t in traces(fig, name="raw paper") for s in t.marker.symbol} == {"square"}
    assert {"balanced", "paper"} <= {t.name for t in fig.data}


def test_validation_figure__one_head_has_no_mean_and_many_no_bars():
    single = validation_of(heads=1).plot()
    assert not [t for t in single.data if (t.name or "").startswith(("mean of", "median of"))]
    many = validation_of(heads=30, factors=("order",), methods=("raw",)).plot()
    assert one(many, name="raw", yaxis="y").error_y.array is None
    assert "0.300 ± 0.010" in one(many, name="raw", yaxis="y").hovertext[0]


def test_validation_figure__says_what_was_not_tested():
    missing = NO_EDIT | dict.fromkeys(("slope_own", "slope_own_error", "slope_other", "slope_other_error"), NAN)
    fig = Validation((check_of(**missing), check_of(head="L2H2", part=NAN, true_part=NAN, **missing))).plot()
    assert note(fig, "notice") == " ".join(["no edit to compare"] * 3 + ["not tested: no shared texts, or too few"])
    assert finite_ranges(fig)
    assert_plain(fig)
    fig.to_json()


def test_validation_figure__hostile_names_and_unknown_methods():
    checks = tuple(check_of(features=EVIL, factor=EVIL, head=head, method=EVIL) for head in ("L1H2", "L3H4"))
    fig = Validation((*checks, check_of(features="b")), (EVIL,), {"model": EVIL}).plot()
    assert_plain(fig)
    with pytest.raises(QKPrismError, match="no check to draw"):
        validation_figure(Validation(()))


# --- all -------------------------------------------------------------------------------------------------------------


def test_proof_figures__every_one_has_a_caption_and_named_axes():
    for made in (effects_of(), attribution_of(), attributions_of(), validation_of()):
        fig = made.plot()
        assert isinstance(fig, go.Figure)
        assert len(note(fig, "caption")) > 100
        assert fig.layout.yaxis.title.text or fig.layout.yaxis.ticktext[0].startswith("L")


@pytest.mark.parametrize("name", ["effects", "attribution", "validation"])
def test_proof_figures__need_neither_torch_nor_the_core(name):
    source = Path(importlib.util.find_spec(f"qkprism.figures.{name}").origin).read_text(encoding="utf-8")
    top = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in top]
    assert not [found for found in modules if found.startswith(("torch", "transformers", "qkprism.core"))]
