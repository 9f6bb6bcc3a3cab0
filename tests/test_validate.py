"""Validation against true counterfactuals: by hand on tiny models, and by planted truth."""

import math

import numpy as np
import pytest
import torch

import qkprism as qk
from one_head import decompose_vector_sets
from planted import Lock
from qkprism import Contrast, Example, QKPrismError, Validation
from qkprism.contrasts import Span, Text
from qkprism.core.scatter import Scatter
from qkprism.core.splitting import split_of
from qkprism.core.variation import MarkedRows, total_variation
from qkprism.heads import Head
from qkprism.models.encoding import encode
from qkprism.results.validation import TruthCheck
from qkprism.verbs import validate as validating
from test_intervene import HEADS, LETTERS, contrasts, load
from test_pipeline import WORDS
from tiny import one_thread  # noqa: F401


def written(things, letters, right, target):
    """The text of some things in some boxes, which asks for the first thing; keys are named by their letters."""
    text, spans = "", {}
    for thing, letter in zip(things, letters, strict=True):
        text += f"the {thing} in "
        spans[letter] = Span(len(text), len(text) + 1, target=letter == target)
        text += letter + ", "
    rest = tuple(span for letter, span in spans.items() if letter != right)
    return Example(Text(text + "the hat in box", None, (spans[right],), rest))


def pair(rng, factor):
    """Two things or two clauses exchanged between the original and the target."""
    n = int(rng.integers(3, 6))
    things = [str(word) for word in rng.permutation([w for w in WORDS if w != "hat"])[: n - 1]] + ["hat"]
    order = rng.permutation(n)
    things, letters = [things[i] for i in order], list(LETTERS[:n])
    a = things.index("hat")
    b = int(rng.choice([i for i in range(n) if i != a]))
    right, target = letters[a], letters[b]
    base = written(things, letters, right, target)
    things[a], things[b] = things[b], things[a]
    if factor == "first":  # the clauses: the letters go with the things
        letters[a], letters[b] = letters[b], letters[a]
    return base, written(things, letters, right, target)


def pairs(n=12, seed=0):
    """Both factors start from the same texts."""
    return {name: [pair(np.random.default_rng((seed, i)), name) for i in range(n)] for name in ("boxes", "first")}


@pytest.fixture(scope="module", params=["llama", "gemma2", "gpt_oss"])
def model(request):
    return load(request.param)


@pytest.fixture(scope="module")
def features(model):
    return qk.decompose(model, contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False)


@torch.no_grad()
def row_by_hand(model, example, head, query=None):
    """Attention on original, target and other keys in order, of the text's own query or of another."""
    encoded = encode(model.tokenizer, [example])[0].text
    original = next(key.position for key in encoded.keys if key.positive)
    target = next(key.position for key in encoded.keys if key.target)
    others = sorted(key.position for key in encoded.keys if key.position not in (original, target))
    calls = []
    model.run(torch.tensor([encoded.ids]), visit=calls.append, layers=[head.layer])
    call, row = calls[0], torch.tensor([encoded.query])
    if query is not None:
        queries = call.query.clone()
        queries[0, head.index, encoded.query] = query
        call = type(call)(**{**vars(call), "query": queries})
    attention = call.attention([head.index], row)[0, 0, 0].double()
    key = call.key[0, call.kv_head(head.index)].double()
    return {
        "attention": [float(attention[at]) for at in (original, target, *others)],
        "query": call.query[0, head.index, encoded.query].double(),
        "pair": key[[original, target]],
        "call": call,
        "places": (original, target, others),
        "row": row,
    }


@torch.no_grad()
def edited_by_hand(read, head, p):
    call, (original, target, others) = read["call"], read["places"]
    key = call.key.clone()
    kv = call.kv_head(head.index)
    change = (p @ (read["pair"][1] - read["pair"][0])).float()
    key[0, kv, original] += change
    key[0, kv, target] -= change
    call = type(call)(**{**vars(call), "key": key})
    attention = call.attention([head.index], read["row"])[0, 0, 0].double()
    return [float(attention[at]) for at in (original, target, *others)]


def variation(a, b):
    a, b = ([*row, 1 - sum(row)] for row in (a, b))
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2


@pytest.mark.parametrize("true", ["keys", "rerun"])
def test_validate__is_what_one_computes_by_hand(model, features, true):
    given = pairs(6)
    frame = qk.validate(model, given, features, truth=true, batch_size=4, progress=False).to_frame()
    for head in features.heads:
        for factor in ("boxes", "first"):
            p = features.joint(head)[factor]
            errors, none, parts, real = [], [], [], []
            for base, changed in given[factor]:
                before = row_by_hand(model, base, head)
                truth = row_by_hand(model, changed, head, before["query"].float() if true == "keys" else None)
                errors.append(variation(edited_by_hand(before, head, p), truth["attention"]))
                none.append(variation(before["attention"], truth["attention"]))
                scaling = float(before["call"].scaling)
                gaps = [float(r["query"] @ (r["pair"][0] - r["pair"][1])) * scaling for r in (before, truth)]
                parts.append(float(before["query"] @ p @ (before["pair"][0] - before["pair"][1])) * scaling)
                real.append((gaps[0] - gaps[1]) / 2)
            row = frame[(frame["head"] == str(head)) & (frame.feature == factor) & (frame.method == "contrast")].iloc[0]
            assert row.tv == pytest.approx(np.mean(errors) / np.mean(none), abs=1e-4)
            assert row.part == pytest.approx(np.mean(parts), abs=1e-4)
            assert row.true_part == pytest.approx(np.mean(real), abs=1e-4)
            assert row.part_error == pytest.approx(np.mean(parts) - np.mean(real), abs=1e-4)
            assert row.true_part_error == pytest.approx(np.std(real, ddof=1) / 6**0.5, abs=1e-4)
            spread = np.std(np.array(parts) - np.array(real), ddof=1) / 6**0.5
            assert row.part_error_error == pytest.approx(spread, abs=1e-4)


def test_validate__has_every_method_and_compares_sets_of_features(model, features):
    paper = qk.decompose(model, contrasts(), heads=HEADS, recipe="paper", progress=False)
    found = qk.validate(model, pairs(16), {"ours": features, "paper": paper}, progress=False)
    frame = found.to_frame()
    assert set(frame[frame.set == "ours"].method) == {
        "whole key",
        "contrast",
        "raw oblique",
        "raw",
        "raw sequential",
    }
    assert "contrast" not in set(frame[frame.set == "paper"].method)
    (note,) = [note for note in found.notes if "conditional" in note]
    assert note.startswith("ours: The conditional edit needs twins")
    assert frame[frame.method == "raw sequential"].tv.isna().all()
    assert not frame[frame.method == "contrast"].slope_other.isna().any()
    assert set(found.summary().columns) >= {"tv", "absolute_part_error", "slope_own"}


def test_validate__a_method_that_a_set_lacks_is_said_and_one_that_none_has_is_refused(model, features):
    paper = qk.decompose(model, contrasts(), heads=HEADS, recipe="paper", progress=False)
    sets = {"ours": features, "paper": paper}
    found = qk.validate(model, pairs(4), sets, methods=["contrast"], progress=False)
    frame = found.to_frame()
    assert set(frame[frame.set == "ours"].method) == {"contrast", "whole key", "raw sequential"}
    assert set(frame[frame.set == "paper"].method) == {"whole key", "raw sequential"}  # no other in its place
    (note,) = [note for note in found.notes if "cannot be edited" in note]
    assert note.startswith("paper: cannot be edited by contrast")
    for wrong, says in [
        ({"features": paper, "methods": ["contrast"]}, "No set of features can be edited by 'contrast'. There are"),
        ({"features": paper, "methods": "contrast"}, "No set of features can be edited"),
        ({"features": sets, "methods": []}, "No method of editing was given"),
        ({"features": sets, "methods": ["best"]}, "'best' is not a method of editing"),
    ]:
        with pytest.raises(QKPrismError, match=says):
            qk.validate(model, pairs(4), progress=False, **wrong)


def test_validate__a_note_about_a_head_names_it_and_its_set(model, features):
    many = features.with_rank(features["boxes", HEADS[0]].d_head)  # more directions than there is room for
    found = qk.validate(model, pairs(2), {"ours": features, "many": many}, methods=["contrast"], progress=False)
    assert any(note.startswith("many: ") for note in found.notes)
    begins = tuple(f"{name}: {head}: " for name in ("ours", "many") for head in HEADS)
    assert all(note.startswith(begins) for note in found.notes)


def check(head, true, off, tv, *, error=0.05, factor="order"):
    """A head with a true part, by how much the part is off, and the distance ratio of an edit."""
    distance = {"distance": tv * abs(true), "distance_unedited": abs(true)}
    distance |= {"logit": tv, "logit_off": tv * abs(true), "logit_off_unedited": abs(true)}
    values = (tv, 0.02, true + off, true, error, off, 0.03, 1.0, 0.1, 0.0, 0.1, 60)
    return TruthCheck("", factor, Head.parse(head), "contrast", *values, **distance)


def test_summary__leads_with_the_heads_in_which_the_factor_matters():
    """Three heads have the factor and two do not: those two are right whatever the method, and moved by noise."""
    having = [check("L0H0", 1.0, 0.5, 1.2), check("L0H1", -2.0, 0.5, 1.1), check("L0H2", 9.0, -0.9, 0.2)]
    without = [check("L1H0", 0.02, 0.0, 3.0), check("L1H1", 0.0, 0.01, 3.0)]
    frame = Validation((*having, *without)).summary()
    matters, every = frame.to_dict("records")
    assert (matters["heads"], matters["n_heads"], matters["of_heads"]) == ("matters", 3, 5)
    assert (every["heads"], every["n_heads"], every["of_heads"]) == ("all", 5, 5)
    assert matters["absolute_part_error"] == pytest.approx(1.9 / 3)
    assert matters["true_part"] == pytest.approx(4)
    assert matters["relative_part_error"] == pytest.approx(1.9 / 12)
    assert matters["relative_part_error_median"] == pytest.approx(0.25)
    assert matters["tv"] == pytest.approx((1.2 * 1 + 1.1 * 2 + 0.2 * 9) / 12)  # one head of three makes it look good
    assert (matters["tv_median"], matters["nearer"]) == (pytest.approx(1.1), 1)
    assert every["absolute_part_error"] == pytest.approx(1.91 / 5)


@pytest.mark.parametrize(
    ("true", "error", "matters"),
    [(1.0, 0.1, True), (-1.0, 0.1, True), (1.0, 0.34, False), (0.09, 0.001, False), (1.0, math.nan, False)],
)
def test_check__a_factor_matters_where_its_part_is_clear_and_not_tiny(true, error, matters):
    assert check("L0H0", true, 0.0, 1.0, error=error).matters is matters


def test_summary__no_head_in_which_it_matters_is_a_row_of_unknowns():
    found = Validation((check("L0H0", 0.01, 0.0, 0.5),))
    row = found.summary().iloc[0]
    assert (row["heads"], row["n_heads"], row["of_heads"]) == ("matters", 0, 1)
    assert math.isnan(row["tv"])
    assert math.isnan(row["relative_part_error"])
    assert "none of 1 head" in found.verdict()[0]


def test_verdict__says_in_how_many_heads_and_how_wrong():
    having = (check("L0H0", 1.0, 0.5, 1.2), check("L0H1", 2.0, 0.5, 0.5), check("L0H2", 0.0, 0.0, 0.1))
    (said,) = Validation(having).verdict()
    assert "matters in 2 of 3 heads" in said
    assert "less than no edit in 1 of 2" in said
    assert "33% of the true part" in said


def test_validate__an_earlier_version_is_one_clear_line(tmp_path):
    fewer = tuple(check("L0H0", 1.0, 0.5, 1.2))[:-1]
    Validation((fewer,)).save(tmp_path / "old")
    with pytest.raises(QKPrismError, match="written by another version"):
        Validation.load(tmp_path / "old")


def test_validate__factors_that_share_their_base_texts_are_as_they_are_alone(model, features):
    columns = ["feature", "head", "method", "tv", "part", "true_part", "part_error", "part_rms"]
    together = qk.validate(model, pairs(), features, progress=False).to_frame()
    for name, own in pairs().items():
        alone = qk.validate(model, {name: own}, features, progress=False).to_frame()
        same = together[together.feature == name].reset_index(drop=True)
        assert alone[columns[:3]].equals(same[columns[:3]])
        np.testing.assert_allclose(alone[columns[3:]], same[columns[3:]], atol=1e-4)


def test_validate__adds_up_chunks_and_keeps_none(model, features, monkeypatch):
    whole = qk.validate(model, pairs(20), features, progress=False).to_frame()
    taken, add = [], validating.ValidationReader._add
    monkeypatch.setattr(validating, "CHUNK", 3)
    monkeypatch.setattr(validating.ValidationReader, "_add", lambda self: taken.append(len(self.kept)) or add(self))
    parts = qk.validate(model, pairs(20), features, batch_size=6, progress=False).to_frame()
    assert sum(taken) == 20
    assert max(taken) <= 4  # a batch more at most
    names = [column for column in whole if column not in ("set", "feature", "head", "method")]
    assert parts.drop(columns=names).equals(whole.drop(columns=names))
    np.testing.assert_allclose(parts[names], whole[names], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("before", [True, False], ids=["not read", "read"])
def test_validate__a_batch_that_does_not_fit_is_run_again_and_counts_once(model, features, monkeypatch, before):
    whole = qk.validate(model, pairs(20), features, batch_size=24, progress=False).to_frame()
    visit, failed = validating.ValidationReader.visit, []

    def once(self, call, batch):
        if not (before and call.layer == 1 and not failed):
            visit(self, call, batch)
        if call.layer == 1 and not failed:
            failed.append(len(batch.examples))
            raise torch.OutOfMemoryError

    monkeypatch.setattr(validating.ValidationReader, "visit", once)
    again = qk.validate(model, pairs(20), features, batch_size=24, progress=False).to_frame()
    assert failed[0] > 1
    assert set(again.n) == {20}
    values = ["tv", "part", "true_part", "slope_own"]
    np.testing.assert_allclose(again[values], whole[values], rtol=1e-3, atol=1e-4)


def test_validate__slopes_are_of_the_bases_that_all_factors_change(model, features):
    given = pairs(30)
    same = qk.validate(model, {name: own[:20] for name, own in given.items()}, features, progress=False).to_frame()
    more = qk.validate(model, {"boxes": given["boxes"], "first": given["first"][:20]}, features, progress=False)
    more = more.to_frame()
    own = same.feature == "boxes"
    assert set(more[own].n) == {30}
    assert set(more[~own].n) == {20}
    slopes = ["slope_own", "slope_other", "slope_own_error", "slope_other_error"]
    np.testing.assert_allclose(more[slopes], same[slopes], rtol=1e-3, atol=1e-4)
    assert not np.allclose(more[own].part, same[own].part)


def test_validate__sequential_part_is_the_attribution_of_the_gap(model, features):
    given = {"boxes": pairs(3)["boxes"]}
    raw = features.with_metric("raw").with_rank(2)
    frame = qk.validate(model, given, features, heads="L1H3", progress=False).to_frame()
    row = frame[frame.method == "raw sequential"].iloc[0]
    parts = []
    for base, _ in given["boxes"]:
        split = split_of([raw[name, "L1H3"] for name in raw.contrasts], "sequential")
        read = row_by_hand(model, base, qk.Head(1, 3))
        own = split.parts(read["query"][None], read["pair"][None], float(read["call"].scaling))
        parts.append(float(own[split.names.index("boxes"), 0, 0] - own[split.names.index("boxes"), 0, 1]))
    assert row.part == pytest.approx(np.mean(parts), abs=1e-4)


def test_validate__saves_and_loads(model, features, tmp_path):
    found = qk.validate(model, {"boxes": pairs(3)["boxes"]}, features, progress=False)
    again = Validation.load(found.save(tmp_path / "validation"))
    assert again.to_frame().equals(found.to_frame())
    assert math.isnan(again.checks[0].slope_own)  # too few pairs for a slope
    assert "3 pairs" in repr(again)


def test_validate__bad_input_is_one_clear_line(model, features):
    good = pairs(2)["boxes"]
    several = Example.parse("the hat in [+A], the pen in [-B], the cup in [-C], the hat in box")
    fewer = written(["hat", "pen"], ["A", "B"], "A", "B")
    longer = written(["hat", "pen", "cup"], ["A", "B", "C"], "A", "B")
    for wrong, says in [
        (lambda: qk.validate(model, good, features), "Say which factor was exchanged"),
        (
            lambda: qk.validate(model, {"colour": good}, features),
            "The pairs are named colour, and these",
        ),
        (lambda: qk.validate(model, {"boxes": []}, features), "no pairs for the factor 'boxes'"),
        (
            lambda: qk.validate(model, {"boxes": [(several, several)]}, features),
            "one negative key marked as",
        ),
        (lambda: qk.validate(model, {"boxes": [(longer, fewer)]}, features), "has 2 keys and the base 3"),
        (lambda: qk.validate(model, {"boxes": good}, {}), "at least one set"),
        (lambda: qk.validate(model, {"boxes": [(good[0][0], good[0][0])]}, features), "nothing was exchanged"),
        (lambda: qk.validate(model, {"boxes": Contrast("x", (good[0][0],))}, features), "a text and a changed twin"),
        (lambda: qk.validate(model, {"boxes": good}, features, heads="L0H0"), "no feature for head L0H0"),
    ]:
        with pytest.raises(QKPrismError, match=says):
            wrong()


def test_validate__takes_texts_with_twins_and_refuses_queries_in_other_places(model, features):
    given = pairs(3)["boxes"]
    file = Contrast("pairs", tuple(Example(base.text, changed.text) for base, changed in given))
    ours, theirs = (qk.validate(model, {"boxes": x}, features, progress=False).to_frame() for x in (given, file))
    assert ours.equals(theirs)
    shifted = Example(Text("oh, " + given[0][1].text.text, None, *_moved(given[0][1].text, 4)))
    if model.rotates:
        with pytest.raises(QKPrismError, match="cannot meet the changed keys"):
            qk.validate(model, {"boxes": [(given[0][0], shifted)]}, features)
    qk.validate(model, {"boxes": [(given[0][0], shifted)]}, features, truth="rerun", progress=False)


def _moved(text, by):
    return (
        tuple(Span(s.start + by, s.end + by, s.labels, s.target) for s in side)
        for side in (text.positive, text.negative)
    )


# Planted truth


def scatter(*columns):
    found = Scatter.zeros(len(columns))
    found.add(torch.stack(columns, 1))
    return found


def test_slopes__are_one_and_zero_for_the_oblique_parts_and_not_for_the_papers():
    lock = Lock()
    features = decompose_vector_sets(lock.contrasts(4000), rank="heldout", scaling=1.0)
    query, key, exchanged, _ = lock.scenes(1000)

    def gap(keys):
        return torch.einsum("nd,nd->n", query, keys[:, 0] - keys[:, 1])

    true = torch.stack([(gap(key) - gap(exchanged[name])) / 2 for name in ("z1", "z2")], 1)
    found = {}
    for metric in ("contrast", "raw"):
        own = [features.with_metric(metric).with_rank({"z1": 3, "z2": 5})[name, "L0H0"] for name in ("z1", "z2")]
        split = split_of(own, "oblique" if metric == "contrast" else "sequential")
        parts = split.parts(query, key, 1.0)
        for i, name in enumerate(split.names):
            value, error = scatter(*true.T, parts[i, :, 0] - parts[i, :, 1]).slopes()
            own_place = ("z1", "z2").index(name)
            found[name, metric] = (float(value[own_place]), float(value[1 - own_place]), float(error.max()))
    for name in ("z1", "z2"):
        own, other, error = found[name, "contrast"]
        assert own == pytest.approx(1, abs=0.02)
        assert other == pytest.approx(0, abs=0.02)
        assert error < 0.01
    assert abs(found["z1", "raw"][1]) > 0.05 or abs(found["z2", "raw"][0] - 1) > 0.05


def test_slopes__agree_with_numpy_and_need_enough_pairs():
    g = torch.Generator().manual_seed(0)
    x, noise = torch.randn(50, 2, generator=g).double(), torch.randn(50, generator=g).double()
    y = 1.5 * x[:, 0] - 0.5 * x[:, 1] + 2 + 0.1 * noise
    value, error = scatter(*x.T, y).slopes()
    design = np.column_stack([np.ones(50), x.numpy()])
    expected, rss, *_ = np.linalg.lstsq(design, y.numpy(), rcond=None)
    deviations = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * rss[0] / 47)
    assert np.allclose(value, expected[1:])
    assert np.allclose(error, deviations[1:])
    assert scatter(*x[:12].T, y[:12]).slopes()[0].isnan().all()
    for follows in (x[:, 0], 3 - 2 * x[:, 0], torch.full_like(y, 0.1), torch.zeros_like(y), 1e-9 * noise):
        assert scatter(x[:, 0], follows, y).slopes()[0].isnan().all()


def test_total_variation__is_half_the_difference_and_ratio_has_its_error():
    rows = MarkedRows(torch.log(torch.tensor([[0.5, 0.3, 0.1]])).double(), torch.log(torch.tensor([0.1])).double())
    moved = rows.with_pair(rows.marked[:, 1], rows.marked[:, 0])
    assert float(total_variation(rows, moved)) == pytest.approx(0.2)
    g = torch.Generator().manual_seed(1)
    a, b = torch.rand(2000, generator=g).double(), 1 + torch.rand(2000, generator=g).double()
    ratio, error = scatter(a, b).ratio(0, 1)
    assert ratio == pytest.approx(1 / 3, abs=0.01)
    resampled = []
    for _ in range(300):
        pick = torch.randint(2000, (2000,), generator=g)
        resampled.append(scatter(a[pick], b[pick]).ratio(0, 1)[0])
    assert error == pytest.approx(np.std(resampled), rel=0.15)
    assert math.isnan(scatter(a, torch.zeros_like(b)).ratio(0, 1)[0])


def test_scatter__chunks_do_not_matter_and_unknown_values_stay_by_themselves():
    g = torch.Generator().manual_seed(2)
    values = 1000 + torch.randn(40, 3, generator=g).double()
    whole, parts, single = Scatter.zeros(3), Scatter.zeros(3), Scatter.zeros(3)
    whole.add(values)
    for chunk in (values[:1], values[1:1], values[1:30], values[30:]):
        parts.add(chunk)
    assert parts.n == 40
    assert torch.allclose(parts.mean, values.mean(0))
    assert torch.allclose(parts.products / 39, torch.cov(values.T), atol=1e-9)
    off = (values[:, 0] - values[:, 1]).numpy()
    expected = (off.mean(), off.std(ddof=1) / 40**0.5, np.sqrt((off**2).mean()))
    assert parts.difference(0, 1) == pytest.approx(expected)
    assert parts.ratio(0, 2) == pytest.approx(whole.ratio(0, 2))
    values[3, 2] = torch.nan
    assert scatter(*values.T).difference(0, 1) == pytest.approx(expected)
    assert math.isnan(scatter(*values.T).ratio(2, 0)[0])
    single.add(values[:1])
    assert single.difference(0, 1)[0] == pytest.approx(off[0])
    assert math.isnan(single.difference(0, 1)[1])
    assert not single.products.any()
