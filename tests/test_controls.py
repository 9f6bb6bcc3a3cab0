"""The one table of controls: complete, and the only place that says how they are called and drawn."""

import ast
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
from plotly.validator_cache import ValidatorCache

from drawn import note, traces
from one_head import decompose_vector_sets
from plain_vectors import intervene_vectors
from planted import Lock
from qkprism import Head
from qkprism.controls import BY_NAME, CONTROLS, EVIDENCE, RIVALS, SHARED, WEAK, Control, ControlName
from qkprism.core.effect_sums import Table
from qkprism.explorer.opening import opened
from qkprism.figures.filter import separation_figure
from qkprism.figures.theme import INK
from qkprism.subspaces.conditions import layer_conditions
from qkprism.toy.contrasts import feature_only
from test_planted_truth import attending

SOURCE = Path(__file__).parent.parent / "src" / "qkprism"


@pytest.fixture(scope="module")
def features():
    return decompose_vector_sets(Lock().contrasts(300), rank=2)


@pytest.fixture(scope="module")
def effects(features):
    return intervene_vectors(attending(Lock(), 50), features, draws=2)


def test_controls__nothing_is_missing_and_no_two_look_alike():
    assert {control.name for control in CONTROLS} == set(get_args(ControlName))
    with pytest.raises(TypeError, match="missing"):
        Control("new")
    symbols = set(ValidatorCache.get_validator("scatter.marker", "symbol").values)
    for control in CONTROLS:
        for field in fields(control):
            assert getattr(control, field.name) != ""
        assert all(re.fullmatch("#[0-9A-F]{6}", color) for color in (control.color, control.shade))
        assert control.mark in (("dot", "dash") if control.shared else symbols)
    for name in ("title", "meaning", "mark"):
        assert len({getattr(control, name) for control in CONTROLS}) == len(CONTROLS)
    assert {BY_NAME[name].color for name in ("feature", "none", "full")} == {INK}


def test_controls__the_feature_its_rivals_and_the_ends_are_all():
    assert {BY_NAME["feature"], *RIVALS, *SHARED} == set(CONTROLS)
    assert {*EVIDENCE, *WEAK} == set(RIVALS)
    assert [control.name for control in WEAK] == ["gaussian"]
    assert not set(RIVALS) & set(SHARED)


def test_controls__are_those_that_conditions_are_made_of(features):
    names = layer_conditions(features, 0, ("contrast", "raw"), draws=3)[Head(0, 0)].names
    assert {name.control for name in names} == set(BY_NAME)
    table = Table(names)
    for row, draws, rival in zip(table.rows, table.draws.tolist(), table.is_rival.tolist(), strict=True):
        control = BY_NAME[row.control]
        assert (draws > 1) == control.drawn
        assert (row.feature == "") == control.shared
        assert rival == control.is_rival == (not feature_only(row))


def test_controls__each_has_its_place_in_sentences_frames_figures_and_pages(effects):
    fig, caption = effects.plot(), opened("effects", effects).captions["effects"]
    rows, frame = effects.beats(), effects.to_frame()
    assert {row["control"] for row in rows} == {control.name for control in RIVALS}
    assert set(frame.control) == set(BY_NAME)
    shown = note(fig, "caption").replace("<br>", " ")
    for control in CONTROLS:
        drawn = [trace for trace in traces(fig, legendgroup=control.name) if trace.y and trace.y[0] is not None]
        assert drawn, control.name
        assert traces(fig, name=control.title)
        where = {"head": "L0H0", "control": control.name} | ({} if control.shared else {"feature": "z1"})
        assert effects.gain(**where)[1] >= 0
    for control in RIVALS:
        assert all(control.title in sentence for sentence in effects.verdict())
        assert f"{control.title} ({control.meaning}; {control.strength})" in caption
        assert control.title in shown


def test_controls__each_has_a_bar(features):
    found = intervene_vectors({"accuracy": attending(Lock(), 50)}, features, draws=2)
    about = {"label": "z", "labels": 4, "items": 3, "examples": 50}
    found = replace(found, measures=("score", *found.measures[1:]), compared="score", edit=None, provenance=about)
    (bars,) = [trace for trace in separation_figure(found, ["L0H0"]).data if trace.type == "bar"]
    colors = dict(zip(bars.hovertext, bars.marker.color, strict=True))
    for control in (*RIVALS, BY_NAME["full"]):
        assert {color for text, color in colors.items() if text.startswith(f"{control.title}: ")} == {control.shade}


def test_controls__are_listed_nowhere_else():
    """A second list would be one that can lack a control; `conditions` says how each is drawn at random."""
    for path in SOURCE.rglob("*.py"):
        if path.name in ("controls.py", "conditions.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict | ast.List | ast.Tuple | ast.Set):
                items = node.keys if isinstance(node, ast.Dict) else node.elts
                names = {item.value for item in items if isinstance(item, ast.Constant)} & {c.name for c in RIVALS}
                assert len(names) < 3, f"{path}:{node.lineno}"
