"""What the study is judged by, on a few heads of two seeds: swaps, matched targets, the truth, and changes of basis."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest
import torch

from mailed import answer_in
from planted import swap
from qkprism import QKPrismError
from qkprism.cli import main
from qkprism.core.effect_sums import Condition
from qkprism.core.splitting import split_of
from qkprism.figures.toy import toy_drawings
from qkprism.figures.toy_swaps import swap_bars
from qkprism.toy import Cell, Depth, Sampling, ToyTask, few_cells, study
from qkprism.toy.cells import untrained
from qkprism.toy.claims import claims
from qkprism.toy.claims import told as told_of
from qkprism.toy.contrasts import recipes_of
from qkprism.toy.interventions import Editable, draw_editable, true_attention
from qkprism.toy.limits import projector_error
from qkprism.toy.portrait import Portrait
from qkprism.toy.samples import draw_samples, exchange
from qkprism.toy.stack import Protocol
from qkprism.toy.task import stream
from qkprism.toy.truth import basis_change, rebased
from toy_cells import JUDGED as CELLS


@pytest.fixture(scope="module")
def found(toy_folder):
    depth = Depth(swaps=1024, draws=1, most=200)
    return study(toy_folder, cells=CELLS, protocol="quick", sampling=Sampling(n=2048), depth=depth)


def rows(swaps, **wanted):
    """Rows of heads with room, with these values."""
    return [
        row
        for row in swaps
        if sum(row.cell.task.ranks) < 8 and all(getattr(row, name) == value for name, value in wanted.items())
    ]


@pytest.mark.parametrize("method", ["contrast", "raw oblique", "raw"])
def test_swapping_both__moves_all_the_attention(found, method):
    before = {row.cell: row for row in rows(found.trained.swaps, target="given", control="none", feature="z1+z2")}
    after = rows(found.trained.swaps, target="given", control="feature", method=method, feature="z1+z2")
    assert len(after) == 4
    for row in after:
        assert abs(row.on_target - before[row.cell].on_original) < 0.01, row
        assert row.off_truth < 0.03, row
        (gaussian,) = [
            r
            for r in rows(found.trained.swaps, target="given", control="gaussian", method=method, feature="z1+z2")
            if r.cell == row.cell
        ]
        assert gaussian.on_target < row.on_target


def test_matched_target__moves_with_its_own_latent_and_stays_with_the_other(found):
    for own, other in (("z1", "z2"), ("z2", "z1")):
        matched = rows(found.trained.swaps, target=own)
        before = {row.cell: row for row in matched if row.control == "none"}
        for row in rows(matched, control="feature", method="contrast"):
            if row.feature == own:
                assert abs(row.on_target - before[row.cell].on_original) < 0.01, row
            if row.feature == other:
                assert abs(row.on_target - before[row.cell].on_target) < 0.01, row


def test_contrast_swap__is_the_truth_in_any_basis_and_the_papers_is_not(found):
    error = {
        (when, method): mean(
            row.off_truth for row in rows(swaps, target="given", control="feature", method=method, feature="z1")
        )
        for when, swaps in (("before", found.trained.swaps), ("after", found.rebased.swaps))
        for method in ("contrast", "raw")
    }
    assert error["before", "contrast"] < 0.02
    assert error["after", "contrast"] == pytest.approx(error["before", "contrast"], abs=1e-4)
    assert error["before", "raw"] > 0.02
    assert error["after", "raw"] > 2 * error["before", "raw"]


def test_contrast_parts__are_near_the_truth_in_any_basis_and_the_papers_are_not(found):
    def share(parts, metric, split):
        return mean(r.share for r in parts if sum(r.cell.task.ranks) < 8 and (r.metric, r.split) == (metric, split))

    before, after = found.trained.parts, found.rebased.parts
    assert share(before, "contrast", "oblique") < 0.1
    assert share(after, "contrast", "oblique") == pytest.approx(share(before, "contrast", "oblique"), rel=1e-2)
    assert share(after, "paper", "sequential") > 2 * share(before, "paper", "sequential")


def test_parts__raw_is_one_thing_for_swaps_and_attributions(found):
    """The oblique split in the raw metric has the projectors of the swap `raw oblique`."""
    heads = [found.heads[cell] for cell in CELLS[:4]]
    recipes = recipes_of(heads, Sampling(n=512))
    for i, conditions in enumerate(recipes.conditions(1)):
        forms = split_of(recipes.features(i, "raw"), "oblique").forms
        for form, latent in zip(forms, ("z1", "z2"), strict=True):
            moved = conditions.subspace(conditions.names.index(Condition("feature", latent, "raw oblique")))
            assert torch.allclose(form, moved.projector, atol=1e-8)


def test_ranks__balanced_ones_do_not_change_with_the_basis(found):
    ranks = [{(row.cell, row.latent): row for row in one.recovered} for one in (found.trained, found.rebased)]
    for key, row in ranks[0].items():
        assert row.balanced == ranks[1][key].balanced
        if not row.cell.superposed:
            assert row.energy == row.balanced == row.heldout == row.true, row
            assert row.error < 0.15


def test_heads__reach_the_ceiling_of_bayes_or_of_the_dot_product_on_two_seeds(found):
    room = [score for score in found.scores() if not score.cell.superposed]
    assert {score.cell.seed for score in room} == {0, 1}
    assert any(sum(score.cell.task.ranks) == 8 for score in room)
    for score in room:
        assert abs(score.accuracy - score.dot_product_ceiling) < 0.015, score
        assert score.cell.task.variant == "continuous" or score.ceiling - score.accuracy < 0.015


def test_rebased__leaves_all_attention_as_it_was(found):
    for head in found.heads.values():
        samples = draw_samples(head.cell.task, 64, stream(0))
        assert torch.allclose(head.attention(samples), rebased(head).attention(samples), atol=1e-4)
    values = torch.linalg.svdvals(basis_change(8, stream(1), 30.0))
    assert values[0] / values[-1] == pytest.approx(30.0)


def test_true_attention__is_that_of_the_exchanged_tokens(found):
    head = found.heads[CELLS[0]]
    samples = draw_samples(head.cell.task, 64, stream(0))
    true = true_attention(head, Editable.of(head, samples))
    changed = {name: exchange(samples, name) for name in ("z1", "z2")} | {
        "z1+z2": exchange(exchange(samples, "z1"), "z2")
    }
    for name, really in changed.items():
        attention, row = head.attention(really).double(), torch.arange(64)
        for ours, place in zip(true[name], (samples.original, samples.target), strict=True):
            assert torch.allclose(ours, attention[row, place], atol=1e-5)


def logits_of_others(head, rows):
    """The logits of all tokens but original and target, in units of |u|: a row's own scale is taken out."""
    scene, n = rows.scene, len(rows)
    other = torch.ones(n, head.cell.task.tokens, dtype=torch.bool)
    other[torch.arange(n), scene.places.original] = False
    other[torch.arange(n), scene.places.target] = False
    size = (scene.query[:, 0] @ head.key.double()).norm(dim=1, keepdim=True) * scene.scaling
    return scene.logits.product[:, 0][other].view(n, -1) / size


@pytest.mark.parametrize("variant", ["discrete", "continuous"])
def test_editable__rows_are_drawn_like_whole_samples(found, variant):
    """In an untrained head and the noise of the paper all parts of a logit weigh about the same."""
    loud = untrained(Cell(ToyTask(variant, 2, 3, "paper"), 8))
    n, trained = 20_000, next(head for cell, head in found.heads.items() if cell.task.variant == variant)
    for head in (trained, loud):
        whole = Editable.of(head, draw_samples(head.cell.task, n, stream("whole")))
        drawn = draw_editable(head, "given", n, stream("rows"))
        for ours, theirs in zip(*(true_attention(head, rows).values() for rows in (drawn, whole)), strict=True):
            spread = 5 * (ours.std(1) / n**0.5 + 1e-4)
            assert ((ours.mean(1) - theirs.mean(1)).abs() < 2**0.5 * spread).all()
    ours, theirs = (logits_of_others(loud, rows) for rows in (drawn, whole))
    assert ours.mean() == pytest.approx(float(theirs.mean()), abs=0.02)
    assert ours.var() == pytest.approx(float(theirs.var()), rel=0.03)


@pytest.mark.parametrize("ranks", [(2, 2), (3, 3)])
def test_editable__a_matched_target_differs_in_one_latent_in_every_row(ranks):
    head = untrained(Cell(ToyTask("discrete", *ranks), 8))
    for latent, other in (("z1", "z2"), ("z2", "z1")):
        drawn = draw_editable(head, latent, 500, stream(0))
        assert not drawn.moved[other].any()
        assert drawn.moved[latent].any(-1).all()


def test_off_truth__is_the_total_variation_of_whole_rows(found):
    """The three numbers of a row are enough."""
    head = found.heads[CELLS[0]]
    conditions = recipes_of([head], Sampling(n=512)).conditions(1)[0]
    projector = conditions.subspace(conditions.names.index(Condition("feature", "z1", "raw"))).projector
    samples = draw_samples(head.cell.task, 200, stream("x"))
    rows, row = Editable.of(head, samples), torch.arange(200)
    scene = rows.scene
    keys = scene.key[:, 0].clone()
    pair = swap(keys[row, samples.original], keys[row, samples.target], projector)
    keys[row, samples.original], keys[row, samples.target] = pair
    edited = ((keys @ scene.query[:, 0, :, None])[:, :, 0] * scene.scaling).softmax(-1)
    whole = (edited - head.attention(exchange(samples, "z1")).double()).abs().sum(-1) / 2
    o, t = true_attention(head, rows)["z1"]
    ours, theirs = edited[row, samples.original], edited[row, samples.target]
    short = ((ours - o).abs() + (theirs - t).abs() + (ours + theirs - o - t).abs()) / 2
    assert torch.allclose(whole, short, atol=1e-5)


def test_projector_error__is_zero_for_the_whole_and_one_for_nothing(found):
    head = found.heads[CELLS[0]]
    nothing = torch.zeros(8, 8, dtype=torch.float64)
    assert projector_error(head, "z1", nothing) == pytest.approx(1)
    by = {(row.n, row.correlation, row.method): [] for row in found.limits}
    for row in found.limits:
        by[row.n, row.correlation, row.method].append(row.error)
    assert {correlation for _, correlation, _ in by} == {0.0, 0.5, 0.9}
    for (_, _, method), errors in by.items():
        assert mean(errors) < (0.4 if method == "raw" else 0.1)


def test_clouds__keys_and_queries_of_one_vertex_lie_together(found):
    points = [p for p in found.clouds if p.cell.task.variant == "discrete"]
    assert {p.value for p in points} == set(map(float, range(8)))
    place = {}
    for side in ("key", "query"):
        for value in range(8):
            own = torch.tensor([[p.x, p.y, p.z] for p in points if p.side == side and p.value == value])
            place[side, value] = own.mean(0)
    for value in range(8):
        distance = {other: (place["key", value] - place["query", other]).norm() for other in range(8)}
        assert min(distance, key=distance.get) == value


def drawn(study):
    """Every figure of a study."""
    return {name: draw() for name, draw in toy_drawings(study).items()}


def test_figures_and_page__are_made_from_the_results_alone(found):
    figures = drawn(found)
    assert len(figures) == 13
    (before,) = [trace for trace in figures["truth"].data if trace.name == "no edit" and trace.xaxis == "x"]
    room = rows(found.trained.swaps, target="given", control="none", feature="z1")
    continuous = [row.off_truth for row in room if row.cell.task.variant == "continuous"]
    assert before.y[0] == pytest.approx(mean(continuous))
    bars = swap_bars(found.trained.swaps, CELLS[:1], method="contrast")
    (none,) = rows(found.trained.swaps, target="given", control="none", feature="z1+z2", cell=CELLS[0])
    assert bars.data[0].y[0] == none.on_original
    counts = Counter(claim.verdict for claim in claims(found))
    assert f"{counts['agrees']} hold, " in told_of(found)[1].sentence


def less(portrait, keep, kinds=("recovered", "swaps", "parts")):
    """A portrait with some of its rows."""
    return Portrait(**{kind: tuple(row for row in getattr(portrait, kind) if keep(row)) for kind in kinds})


def test_figures_and_page__leave_out_what_was_not_measured(found):
    everything = set(toy_drawings(found))
    superposed = {cell: head for cell, head in found.heads.items() if cell.superposed}
    parts = {
        name: less(getattr(found, name), lambda r: r.cell in superposed) for name in ("trained", "untrained", "rebased")
    }
    only_superposed = drawn(replace(found, heads=superposed, **parts))
    assert everything - only_superposed.keys() == {"gauge"}
    bare = less(found.trained, lambda _: True, ("recovered",))
    without = replace(found, trained=bare, rebased=bare)
    figures = drawn(without)
    assert everything - figures.keys() == {"swaps", "matched", "truth", "parts"}
    assert all(figure.data for figure in figures.values())
    no_draws = less(
        found.trained, lambda row: getattr(row, "control", "") not in ("gaussian", "permuted", "keys", "pca")
    )
    assert len(swap_bars(no_draws.swaps, CELLS[:1]).data[0].x) == 4


def verdicts(study):
    return {claim.what: claim.verdict for claim in claims(study)}


def test_claims__agree_in_trained_heads_and_never_differ_where_the_paper_is_silent(found):
    told = verdicts(found)
    for words in ("recovers the ranks", "moves all the attention", "the same clusters", "In expectation", "G is diag"):
        assert [verdict for paper, verdict in told.items() if words in paper] == ["agrees"], words
    assert [verdict for paper, verdict in told.items() if "99%" in paper] == ["in part"]  # d_head 8, small ranks
    for paper, verdict in told.items():
        assert (verdict == "new") == paper.startswith("(Not in the paper.)")


def test_claims__do_not_agree_in_untrained_heads(tmp_path):
    still = Protocol("still", rate=0.0, steps=1, check_batches=1, test_batches=2)
    cells = [Cell(ToyTask(v, r, r), 8) for v in ("discrete", "continuous") for r in (3, 5)]
    told = verdicts(study(tmp_path, cells=cells, protocol=still, sampling=Sampling(n=200), depth=Depth(256, 1, most=0)))
    for words in ("99% accuracy", "around 85%", "the same clusters", "G is diagonal", "moves all the attention"):
        (verdict,) = [verdict for paper, verdict in told.items() if words in paper]
        assert verdict != "agrees", words
    assert "differs" in told.values()


def test_summary__has_a_row_for_every_kind_of_head(found):
    table = found.summary()
    assert table.heads.sum() == len(CELLS)
    assert set(table.room) == {"below", "equal", "above"}
    assert len(found.swaps()) == len(found.trained.swaps) + len(found.rebased.swaps)
    assert len(found.parts()) == 2 * 12 * len(CELLS)


def test_command__writes_a_report_and_says_where(found, toy_folder, tmp_path, monkeypatch, capsys):
    asked = {}
    shutil.copytree(toy_folder, tmp_path / "run")

    def finished(folder, **options):
        asked.update(options, folder=folder)
        options["say"]("trained heads: 5 of 5")
        return found

    monkeypatch.setattr("qkprism.toy.study", finished)
    monkeypatch.setattr("qkprism.figures.saving.find_spec", lambda _: None)
    for more in ([], ["--json"]):
        monkeypatch.setattr("sys.argv", ["qkprism", "toy", "--quick", "--save", str(tmp_path / "run"), *more])
        with pytest.raises(SystemExit) as done:
            main()
        assert done.value.code in (None, 0)
        told = capsys.readouterr()
        assert "trained heads: 5 of 5" in told.err
        assert "report.html" in told.out
        if more:
            assert len(json.loads(told.out)["summary"]) == len(found.summary())
        else:
            assert "no .png" in told.out
    assert [cell.d_head for cell in asked["cells"]] == [8] * 10
    page = (tmp_path / "run" / "report.html").read_text()
    start = answer_in(page, "start")["found"][0]
    assert [claim["what"] for claim in start["claims"]] == [claim.what for claim in claims(found)]
    assert answer_in(page, "figure", figure=start["picture"])["figure"]["data"]
    assert len(list((tmp_path / "run" / "figures").glob("*.html"))) == 13


def test_command__refuses_the_papers_training_of_a_quick_look(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["qkprism", "toy", "--quick", "--protocol", "paper"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 2
    assert "not both" in capsys.readouterr().err


def test_study__refuses_a_folder_of_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(QKPrismError, match="another folder"):
        study(tmp_path, cells=CELLS)


def test_few_cells__are_small_and_of_both_variants():
    assert {cell.task.variant for cell in few_cells()} == {"discrete", "continuous"}
    assert any(cell.superposed for cell in few_cells())
