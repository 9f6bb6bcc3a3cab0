"""Figures: the numbers of the result, texts escaped, gaps and NaN drawn as such, files that need nothing else."""

import ast
import importlib.util
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import plotly.graph_objects as go
import pytest
import torch

from drawn import note, one, traces
from one_head import decompose_vector_sets, decompose_vectors
from planted import planted, two_factors
from qkprism import Head, HeadScores, QKPrismError
from qkprism.core.feature import NO_EVIDENCE, Gap
from qkprism.figures import maps, rank_figure, save_figure, score_figure, spectrum_figure
from qkprism.figures.ranks import few_heads
from qkprism.figures.spectrum import shown_directions
from qkprism.figures.theme import FEATURE_COLORS, ROLES, feature_color, number, plain, shortened, wrapped
from qkprism.results.scores import MEASURES

EVIL = "<script>alert(1)</script> <b>a</b> & $x^2$"
SAFE = "&lt;script&gt;alert(1)&lt;/script&gt; &lt;b&gt;a&lt;/b&gt; &amp; &#36;x^2&#36;"


def feature_of(n=400, d=16, rank=3, name="planted", **options):
    vectors, _, _ = planted(n, d=d, rank=rank, **options)
    return decompose_vectors(vectors.query, vectors.positive, vectors.negative, name=name)


@pytest.fixture(scope="module")
def feature():
    return feature_of()


@pytest.fixture(scope="module")
def pair():
    return decompose_vector_sets(two_factors(300)[0], head="L2H1")


def over_heads(features, heads, names=None):
    """The same features again in many heads: rank by rank, so that every cell of a map is known."""
    own = list(features.values())
    names = names or [f.contrast for f in own]
    made = {
        (name, head): replace(f, contrast=name, head=head, rank_heldout=(i + j) % (f.d_head + 1))
        for j, (name, f) in enumerate(zip(names, own, strict=True))
        for i, head in enumerate(heads)
    }
    return replace(features, features=made)


def scores_of(heads, model="tiny", n=40, chance=0.25):
    g = torch.Generator().manual_seed(0)
    values = {name: torch.rand(len(heads), generator=g, dtype=torch.float64) for name in MEASURES}
    values["logit_gap"] = values["logit_gap"] * 4 - 3
    errors = {name: 0.1 * torch.rand(len(heads), generator=g, dtype=torch.float64) for name in MEASURES}
    return HeadScores(tuple(heads), values, errors, n, chance, provenance={"model": model})


def every_text(fig):
    """All strings of a figure that plotly shows."""
    texts = [fig.layout.title.text or ""] + [a.text for a in fig.layout.annotations]
    for trace in fig.data:
        texts.append(trace.name or "")
        hover = trace.hovertext
        for row in hover if hover is not None else []:
            texts.extend([row] if isinstance(row, str) else row)
    for axis in fig.select_xaxes():
        texts.extend([axis.title.text or "", *(axis.ticktext or [])])
    return texts


def rows(z):
    return [[math.nan if value is None else value for value in row] for row in z]


# --- theme -----------------------------------------------------------------------------------------------------------


def test_theme__every_role_has_its_own_colour():
    assert len(set(ROLES.values())) == len(ROLES) == 8
    assert len(set(FEATURE_COLORS)) == len(FEATURE_COLORS)


def test_feature_color__same_name_same_colour_and_unknown_refused():
    names = [f"f{i}" for i in range(len(FEATURE_COLORS) + 1)]
    assert [feature_color(name, names) for name in names] == [*FEATURE_COLORS, FEATURE_COLORS[0]]
    assert feature_color("b", ["a", "a", "b"]) == feature_color("b", ["a", "b"])
    with pytest.raises(QKPrismError, match="There are: a, b"):
        feature_color("c", ["a", "b"])


def test_plain__tags_mathematics_and_line_breaks_are_shown_as_they_are():
    assert plain(EVIL) == SAFE
    assert plain('two\n lines "quoted"') == 'two lines "quoted"'


def test_wrapped__breaks_before_escaping_and_keeps_errors_with_their_values():
    lines = wrapped("a & b < c " * 30, 300, 12)
    assert len(lines) > 3
    assert all(re.fullmatch(r"([abc] ?|&amp; ?|&lt; ?)+", line) for line in lines)
    for width in range(130, 400, 10):
        for before, after in pairwise(wrapped("logit gap 1.68 ± 0.04 · salience 21% · n = 9", width, 13)):
            assert not before.endswith("±")
            assert not after.startswith(("±", "·"))


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.5, 0.0511, "0.500 ± 0.051"),
        (123.4, 12.0, "123 ± 12"),
        (1.5, None, "1.5"),
        (1.5, math.nan, "1.5"),
        (1.5, 0.0, "1.5"),
        (math.nan, 0.1, "none"),
        (None, None, "none"),
        (1.0, 1e-12, "1 ± 1e-12"),
    ],
)
def test_number__shows_two_digits_of_the_error(value, error, text):
    assert number(value, error) == text


def test_shortened__keeps_short_texts():
    assert shortened("order") == "order"
    assert len(shortened("x" * 100)) == 48


# --- saving ----------------------------------------------------------------------------------------------------------


def test_save_figure__page_is_whole_and_names_no_other_file(feature, tmp_path):
    path = save_figure(spectrum_figure(feature), tmp_path / "new" / "figure.html")
    page = path.read_text(encoding="utf-8")
    assert len(page) > 1_000_000
    assert not re.search(r"<script[^>]*\ssrc\s*=", page)
    assert not re.search(r"<link[^>]*\shref\s*=", page)
    again = save_figure(spectrum_figure(feature), tmp_path / "again.html")
    assert again.read_text(encoding="utf-8") == page


def test_save_figure__offers_no_upload(feature, tmp_path):
    page = save_figure(spectrum_figure(feature), tmp_path / "x.html", plotlyjs="cdn").read_text(encoding="utf-8")
    assert '"showSendToCloud": false' in page
    assert "sendChartToCloud" in spectrum_figure(feature).layout.template.layout.modebar.remove


def test_save_figure__cdn_is_small_and_a_name_cannot_leave_its_string(tmp_path):
    fig = spectrum_figure(feature_of(name=EVIL))
    page = save_figure(fig, tmp_path / "x.html", plotlyjs="cdn").read_text(encoding="utf-8")
    assert len(page) < 200_000
    assert re.search(r"<script[^>]*\ssrc=", page)
    assert "<script>alert" not in page


def test_save_figure__refuses_other_kinds(feature, tmp_path):
    fig = spectrum_figure(feature)
    with pytest.raises(QKPrismError, match=r"\.html, \.png or \.svg"):
        save_figure(fig, tmp_path / "x.pdf")
    with pytest.raises(QKPrismError, match="inline"):
        save_figure(fig, tmp_path / "x.html", plotlyjs="local")
    assert not list(tmp_path.iterdir())


def test_save_figure__says_that_kaleido_is_missing(feature, tmp_path, monkeypatch):
    monkeypatch.setattr("qkprism.figures.saving.find_spec", lambda _: None)
    with pytest.raises(QKPrismError, match="pip install 'kaleido>=1'"):
        save_figure(spectrum_figure(feature), tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_save_figure__says_that_the_browser_is_missing(feature, tmp_path, monkeypatch):
    def no_browser(*_args, **_options):
        raise RuntimeError("\n\nKaleido requires Google Chrome to be installed.\n\nmany more lines\n")

    monkeypatch.setattr("qkprism.figures.saving.find_spec", lambda _: True)
    monkeypatch.setattr(go.Figure, "to_image", no_browser)
    with pytest.raises(QKPrismError, match="Chrome or Chromium") as caught:
        save_figure(spectrum_figure(feature), tmp_path / "x.svg")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_save_figure__an_image_is_what_the_browser_draws(feature, tmp_path, monkeypatch):
    monkeypatch.setattr("qkprism.figures.saving.find_spec", lambda _: True)
    monkeypatch.setattr(go.Figure, "to_image", lambda _, format, **__: format.encode())
    assert save_figure(spectrum_figure(feature), tmp_path / "x.PNG").read_bytes() == b"png"


# --- spectrum --------------------------------------------------------------------------------------------------------


def test_spectrum_figure__shows_the_numbers_of_the_spectrum(feature):
    fig, spectrum = feature.plot(), feature.spectrum
    drawn = {
        "strength": "strength",
        "random signs, mean to highest": "null_mean",
        "random signs, highest": "null_high",
        "shuffled labels, mean to highest": "shuffled_mean",
        "shuffled labels, highest": "shuffled_high",
        "these directions": "explained",
        "most that any directions can": "ceiling",
    }
    for name, column in drawn.items():
        trace = one(fig, name=name)
        assert list(trace.x) == list(range(1, feature.d_head + 1))
        assert list(trace.y) == getattr(spectrum, column).tolist(), name
    assert one(fig, name="strength").line.color == ROLES["strength"]
    assert one(fig, name="these directions").line.color == ROLES["explained"]


def test_spectrum_figure__fills_the_leading_run_only(feature):
    assert feature.rank_heldout == 3
    fig = spectrum_figure(feature)
    threshold = feature.choices.threshold
    filled, hollow = one(fig, name=f"leading run above {threshold:g}"), one(fig, name="not counted")
    assert list(filled.x) == [1, 2, 3]
    assert [*filled.y, *hollow.y] == feature.spectrum.t.tolist()
    assert filled.marker.color == ROLES["strength"]
    assert hollow.marker.color == "white"
    (line,) = [s for s in fig.layout.shapes if s.name == "threshold"]
    assert line.y0 == line.y1 == threshold


def test_spectrum_figure__marks_both_ranks_in_every_panel(feature):
    apart = replace(feature.with_rank(7), rank_heldout=3)
    at = [s.x0 for s in spectrum_figure(apart).layout.shapes if s.name != "threshold"]
    assert sorted(at) == [3.5] * 3 + [7.5] * 3
    assert note(spectrum_figure(apart), "rank") == "rank 7 (as set) held out 3"
    assert note(spectrum_figure(feature.with_rank("heldout")), "rank") == "rank 3 (held out)"
    assert note(spectrum_figure(feature.with_rank(3)), "rank") == "rank 3 (as set, and held out)"
    own = replace(feature, spectrum=replace(feature.spectrum, own=(3.6 - torch.arange(16).double()) / 4))
    assert own.rank_own == 2
    assert note(spectrum_figure(replace(own, rank_balanced=1).with_rank("own")), "rank").startswith("rank 2 (mostly")
    assert note(spectrum_figure(replace(own, rank_balanced=5).with_rank("own")), "rank").startswith("rank 5 (balanced)")
    none = replace(feature.with_rank(0), rank_heldout=0)
    assert {s.x0 for s in spectrum_figure(none).layout.shapes if s.name != "threshold"} == {0.5}


def test_spectrum_figure__title_names_contrast_head_and_rank(feature):
    title = spectrum_figure(replace(feature, head=Head(18, 6), provenance={"model": "SmolLM2"})).layout.title.text
    assert f"planted in L18H6 of SmolLM2: rank {feature.rank}" in title
    gap = feature.logit_gap
    assert plain(feature.evidence) in title
    assert "n = 400" in title
    assert f"logit gap {number(gap.total, gap.error)}" in title
    assert f"salience {feature.salience_energy:.0%} of energy" in title


def weak_feature(feature, *, t, gap):
    """The feature with a held-out rank of 0, these t of its first directions and this logit gap."""
    values = torch.zeros_like(feature.spectrum.t)
    values[: len(t)] = torch.tensor(t).double()
    spectrum = replace(feature.spectrum, t=values)
    return replace(feature, rank_heldout=0, spectrum=spectrum, logit_gap=Gap(*gap, match=gap[0], salience=0.0))


@pytest.mark.parametrize(
    ("t", "gap", "says", "not_said"),
    [
        (
            [2.1, 0.5, 5.9],
            (0.1, 0.1),
            "3 of 16 does (t = 5.9); the logit gap is not significant (t = 1.0)",
            NO_EVIDENCE,
        ),
        ([2.1], (1.0, 0.1), "holds by itself (t = 2.1); the logit gap is significant (t = 10.0)", NO_EVIDENCE),
        ([2.1], (0.1, 0.1), f"the logit gap is not significant (t = 1.0): {NO_EVIDENCE}", "does (t ="),
    ],
)
def test_evidence__rank_zero_says_what_else_is_known(feature, t, gap, says, not_said):
    weak = weak_feature(feature, t=t, gap=gap)
    said = weak.evidence
    assert says in said
    assert not_said not in said
    assert said.split(";")[0] in weak.plot().layout.title.text.replace("<br>", " ")
    assert "the gap and the accuracy measure what the head does" in note(weak.plot(), "caption").replace("<br>", " ")


def test_rank_figure__says_what_zero_means_and_that_salience_moves_together(pair):
    caption = " ".join(every_text(over_heads(pair, [Head(0, i) for i in range(3)]).plot())).replace("<br>", " ")
    assert "0 is no evidence" not in caption
    assert "no leading direction holds by itself" in caption
    assert "one piece of evidence, not many" in caption


@pytest.mark.parametrize(("d", "rank", "shown"), [(16, 1, 16), (64, 3, 20), (64, 15, 30), (64, 60, 64)])
def test_spectrum_figure__opens_with_the_first_directions(d, rank, shown):
    feature = replace(feature_of(n=100, d=d, rank=2), rank=rank, rank_heldout=1)
    assert shown_directions(feature) == shown
    assert shown_directions(replace(feature, rank=1, rank_heldout=rank)) == shown


def test_spectrum_figure__caption_says_when_directions_are_out_of_view():
    large = replace(feature_of(d=32, rank=2), rank=2, rank_heldout=2)
    assert "Shown: 20 of 32 directions" in note(spectrum_figure(large), "caption")
    assert list(spectrum_figure(large).layout.xaxis.range) == [0.2, 20.5]
    assert "Shown:" not in note(spectrum_figure(feature_of(d=8, rank=2)), "caption")


def test_spectrum_figure__untested_feature_has_an_empty_middle_panel():
    few = feature_of(n=3, d=8, rank=2, name="few")
    assert few.rank_heldout is None
    assert few.spectrum.t.isnan().all()
    fig = spectrum_figure(few)
    assert note(fig, "notice") == "not tested"
    assert plain(few.evidence) in fig.layout.title.text
    assert not traces(fig, name="not counted")
    assert [s.x0 for s in fig.layout.shapes] == [few.rank + 0.5] * 3
    fig.to_json()


def test_spectrum_figure__nan_columns_gaps_and_zeros_do_not_break_it(feature):
    missing = torch.full((16,), torch.nan, dtype=torch.float64)
    columns = ("balanced", "null_mean", "null_high", "shuffled_mean", "shuffled_high", "t", "explained", "ceiling")
    spectrum = replace(feature.spectrum, **dict.fromkeys(columns, missing), strength=torch.zeros_like(missing))
    broken = replace(
        feature,
        spectrum=spectrum,
        rank_heldout=None,
        rank_balanced=None,
        logit_gap=None,
        salience_energy=math.nan,
        salience_t=math.nan,
    )
    fig = spectrum_figure(broken)
    assert note(fig, "notice") == "strength is numerically zero not tested not available"
    assert "no logit gap within a prompt" in fig.layout.title.text
    assert "nan" not in "".join(every_text(fig)).lower()
    for axis in (*fig.select_xaxes(), *fig.select_yaxes()):
        assert all(map(math.isfinite, axis.range or []))
    assert note(fig, "rank").endswith("(energy)")


def test_spectrum_figure__says_that_strengths_vanish(feature):
    spectrum = replace(
        feature.spectrum, strength=feature.spectrum.strength * 1e-12, explained=feature.spectrum.explained - 0.5
    )
    fig = spectrum_figure(replace(feature, spectrum=spectrum))
    assert note(fig, "notice") == "strength is numerically zero"
    assert fig.layout.yaxis3.range[0] < float(spectrum.explained.min()) < 0
    assert note(spectrum_figure(feature), "notice") == ""


def test_spectrum_figure__escapes_names():
    fig = spectrum_figure(replace(feature_of(name=EVIL), notes=("<i>note</i>",), provenance={"model": "<b>m</b>"}))
    assert SAFE in fig.layout.title.text
    assert "&lt;b&gt;m&lt;/b&gt;" in fig.layout.title.text
    assert "&lt;i&gt;note" in note(fig, "caption")
    assert not any("<script" in text or "<i>" in text or "$" in text for text in every_text(fig))


# --- heads: scores ---------------------------------------------------------------------------------------------------


def test_measures__are_those_of_head_scores():
    assert tuple(maps.MEASURES) == MEASURES


@pytest.mark.parametrize("measure", MEASURES)
def test_score_figure__every_cell_holds_its_head(measure):
    heads = [Head(layer, index) for layer in range(4) for index in range(3)]
    scores = scores_of(heads).sort("ratio")
    fig = scores.plot(measure)
    z, hover = rows(one(fig, name="values").z), one(fig, name="values").hovertext
    for i, head in enumerate(scores.heads):
        assert z[head.index][head.layer] == float(scores.values[measure][i])
        text = hover[head.index][head.layer]
        assert text.startswith(f"<b>{head}</b>")
        for name in MEASURES:
            assert f"{name} {number(float(scores.values[name][i]), float(scores.errors[name][i]))}" in text
    assert all(value is None for row in one(fig, name="missing").z for value in row)
    assert "Grey" not in note(fig, "caption")
    assert fig.layout.xaxis.title.text == "layer"
    assert fig.layout.yaxis.title.text == "head"
    assert note(fig, "bar") == maps.MEASURES[measure].unit


def test_score_figure__layers_with_gaps_and_missing_heads():
    heads = [Head(3, 0), Head(3, 5), Head(11, 5), Head(7, 2)]
    fig = score_figure(scores_of(heads), "attention_positive")
    assert list(fig.layout.xaxis.ticktext) == ["3", "7", "11"]
    assert list(fig.layout.yaxis.ticktext) == ["0", "2", "5"]
    z, grey = rows(one(fig, name="values").z), rows(one(fig, name="missing").z)
    assert [[math.isnan(v) for v in row] for row in z] == [[not math.isnan(v) for v in row] for row in grey]
    assert sum(not math.isnan(v) for row in z for v in row) == 4
    assert one(fig, name="missing").hovertext[0][1] == "L7H0: not scored"
    assert "Grey: not scored" in note(fig, "caption")
    assert fig.layout.xaxis.title.text == "layer (others not scored)"


def test_score_figure__gap_is_centred_on_zero_and_shares_start_there():
    heads = [Head(0, i) for i in range(6)]
    gap = score_figure(scores_of(heads), "logit_gap").layout.coloraxis
    assert gap.cmin == -gap.cmax
    assert gap.cmax == float(scores_of(heads).values["logit_gap"].abs().max())
    share = score_figure(scores_of(heads), "accuracy").layout.coloraxis
    assert (share.cmin, share.cmax) == (0, 1)


def test_score_figure__names_the_chance_level_of_accuracy():
    fig = score_figure(scores_of([Head(0, 0), Head(0, 1)], chance=1 / 6), "accuracy")
    assert "Chance, picking a marked key at random, is 0.17" in note(fig, "caption")
    assert "0.17 chance" in fig.layout.coloraxis.colorbar.ticktext
    assert "hance" not in note(score_figure(scores_of([Head(0, 0)]), "logit_gap"), "caption")


@torch.inference_mode()  # in which tensors of results can be written
def test_score_figure__outlines_and_names_the_highest():
    heads = [Head(layer, index) for layer in range(6) for index in range(4)]
    scores = scores_of(heads)
    scores.values["ratio"][0] = math.nan
    fig = score_figure(scores, "ratio")
    best = [str(head) for head in scores.top(5, by="ratio")]
    assert [s.name for s in fig.layout.shapes] == best
    assert all(name in note(fig, "caption") for name in best)
    corner = fig.layout.shapes[0]
    assert (corner.x0 + 0.5, corner.y0 + 0.5) == (Head.parse(best[0]).layer, Head.parse(best[0]).index)
    assert "Grey: not scored" in note(fig, "caption")


@torch.inference_mode()  # in which tensors of results can be written
def test_score_figure__all_nan_and_one_head():
    scores = scores_of([Head(9, 9)])
    for name in MEASURES:
        scores.values[name][0] = scores.errors[name][0] = math.nan
        fig = score_figure(scores, name)
        assert "nan" not in "".join(every_text(fig)).lower()
        assert math.isfinite(fig.layout.coloraxis.cmax)


def test_score_figure__large_models_keep_readable_ticks_and_no_letters():
    fig = score_figure(scores_of([Head(layer, index) for layer in range(80) for index in range(64)]), "ratio")
    assert one(fig, name="values").texttemplate is None
    assert len(fig.layout.xaxis.ticktext) <= 40
    assert fig.layout.xaxis.ticktext[1] == str(fig.layout.xaxis.tickvals[1])


def test_score_figure__refuses_unknown_measures_and_no_heads():
    scores = scores_of([Head(0, 0)])
    with pytest.raises(QKPrismError, match="Use one of accuracy"):
        score_figure(scores, "beauty")
    with pytest.raises(QKPrismError, match="no head to draw"):
        score_figure(scores.above(accuracy=2.0), "accuracy")


def test_score_figure__escapes_the_model():
    fig = score_figure(scores_of([Head(0, 0)], model=EVIL), "accuracy")
    assert SAFE in fig.layout.title.text


# --- heads: ranks ----------------------------------------------------------------------------------------------------


def test_few_heads__small_or_sparse():
    every = [Head(layer, index) for layer in range(30) for index in range(9)]
    assert few_heads(every[:16])
    assert few_heads([Head(i, i % 9) for i in range(20)])
    assert not few_heads(every)
    assert not few_heads(every[:45])


def test_rank_figure__map_has_a_panel_a_contrast_in_one_colour_scale(pair):
    heads = [Head(layer, index) for layer in range(6) for index in range(4)]
    features = over_heads(pair, heads)
    fig = features.plot()
    maps = traces(fig, name="values")
    assert len(maps) == 2
    for trace, name in zip(maps, features.contrasts, strict=True):
        assert trace.coloraxis == "coloraxis"
        for head in heads:
            feature = features[name, head]
            assert trace.z[head.index][head.layer] == feature.rank_heldout
            text = trace.hovertext[head.index][head.layer]
            missing = [key for key in feature.summary() if key not in ("contrast", "head") and key not in text]
            assert missing == ["logit_gap_error"]
            gap = feature.logit_gap
            assert f"logit_gap {number(gap.total, gap.error)}" in text
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (0, max(f.rank_heldout for f in features.values()))
    for panel, name in zip((a for a in fig.layout.annotations if a.name == "panel"), features.contrasts, strict=True):
        assert name in panel.text
        assert feature_color(name, features.contrasts) in panel.text


def test_rank_figure__untested_heads_are_grey(pair):
    features = over_heads(pair, [Head(layer, index) for layer in range(6) for index in range(4)])
    made = dict(features.features)
    key = ("z1", Head(5, 3))
    made[key] = replace(made[key], rank_heldout=None)
    fig = rank_figure(replace(features, features=made))
    assert traces(fig, name="missing")[0].z[3][5] == 1
    assert traces(fig, name="values")[0].z[3][5] is None
    assert "rank_heldout none" in traces(fig, name="missing")[0].hovertext[3][5]
    assert "not tested" in note(fig, "caption")
    assert "Grey: not known" in note(fig, "caption")
    untested = rank_figure(replace(features, features={k: replace(f, rank_heldout=None) for k, f in made.items()}))
    assert untested.layout.coloraxis.cmax == 1


def test_rank_figure__few_heads_are_dots_of_each_rank(pair):
    heads = [Head(7, 2), Head(2, 1), Head(7, 0)]
    features = over_heads(pair, heads)
    fig = features.plot()
    assert not any(trace.type == "heatmap" for trace in fig.data)
    assert list(fig.layout.yaxis.ticktext) == ["L2H1", "L7H0", "L7H2"]
    assert any(f.rank_own is not None for f in features.values())
    assert "Mostly its own" in note(fig, "caption")
    for kind in ("rank_own", "rank_heldout", "rank_balanced", "rank_energy"):
        for trace, name in zip(traces(fig, name=kind), features.contrasts, strict=True):
            assert list(trace.x) == [getattr(features[name, head], kind) for head in sorted(heads)]
            if kind == "rank_heldout":
                assert trace.marker.color == feature_color(name, features.contrasts)
    assert fig.layout.xaxis.title.text == "rank (directions)"


def test_rank_figure__dots_without_held_out_or_balanced_rank(pair):
    bare = {k: replace(f, rank_heldout=None, rank_balanced=None) for k, f in pair.features.items()}
    fig = rank_figure(replace(pair, features=bare))
    assert all(x is None for trace in traces(fig, name="rank_heldout") for x in trace.x)
    assert "not tested" in note(fig, "caption")
    fig.to_json()


def test_rank_figure__real_decomposition_of_one_contrast():
    vectors, _, _ = planted(200, d=8, rank=2)
    fig = decompose_vector_sets({"only": vectors}, head="L4H3", metric="raw").plot()
    assert list(fig.layout.yaxis.ticktext) == ["L4H3"]
    assert not traces(fig, name="rank_own")
    assert "its own" not in note(fig, "caption")


@pytest.mark.parametrize("n", [2, 24])
def test_rank_figure__escapes_names(pair, n):
    fig = rank_figure(over_heads(pair, [Head(i // 4, i % 4) for i in range(n)], names=[EVIL, "<b>z</b>" * 20]))
    assert not any("<script" in text or "<b>z" in text or "$" in text for text in every_text(fig))
    assert SAFE[:20] in note(fig, "panel")


def test_rank_figure__refuses_nothing(pair):
    with pytest.raises(QKPrismError, match="no head to draw"):
        rank_figure(replace(pair, features={}))


def test_figures__every_one_has_a_caption_and_named_axes(feature, pair):
    many = over_heads(pair, [Head(i // 4, i % 4) for i in range(24)])
    for fig in (feature.plot(), pair.plot(), many.plot(), scores_of([Head(0, 0)]).plot()):
        assert len(note(fig, "caption")) > 40
        *_, last = fig.select_xaxes()  # stacked maps name the layers once, below the last
        assert last.title.text
        assert fig.layout.yaxis.title.text or fig.layout.yaxis.ticktext[0].startswith("L")


@pytest.mark.parametrize("name", ["grid", "maps", "ranks", "spectrum", "theme"])
def test_figures__need_neither_torch_nor_the_core(name):
    source = Path(importlib.util.find_spec(f"qkprism.figures.{name}").origin).read_text(encoding="utf-8")
    top = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in top]
    assert not [found for found in names if found.startswith(("torch", "transformers", "qkprism.core"))]
