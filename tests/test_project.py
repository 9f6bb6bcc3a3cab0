"""Projections: the vectors of examples, their coordinates, and whether a feature alone finds the positive key."""

from dataclasses import replace

import pytest
import torch

import qkprism as qk
from qkprism import Projections, QKPrismError
from qkprism.models.encoding import encode
from qkprism.results.projections import principal_components
from test_intervene import HEADS, contrasts, examples, load
from tiny import one_thread  # noqa: F401


@pytest.fixture(scope="module")
def model():
    return load("llama")


@pytest.fixture(scope="module")
def features(model):
    return qk.decompose(model, contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False)


def test_project__gathers_the_vectors_that_meet_whatever_the_batches(model, features):
    test = examples(7, seed=2)
    found = qk.project(model, test, features, batch_size=3, progress=False)
    encoded = encode(model.tokenizer, test)
    parts = {}
    for item in encoded:
        calls = []
        model.run(torch.tensor([item.text.ids]), visit=calls.append, layers=[1])
        call = calls[0]
        for head in (0, 3):
            query = call.query[0, head, item.text.query].double()
            keys = call.key[0, call.kv_head(head)].double()
            p = features.joint(f"L1H{head}")["boxes"]
            own = {key.positive: [] for key in item.text.keys}
            for key in item.text.keys:
                own[key.positive].append(float(query @ p @ keys[key.position]))
            parts.setdefault(f"L1H{head}", []).append(max(own[True]) > max(own[False]))
    for head, right in parts.items():
        assert found.alignment(features, "boxes", head)[0] == pytest.approx(sum(right) / 7)
    key, query = found.coordinates(features, "boxes", "L1H0")
    assert key.shape == (sum(len(e.text.keys) for e in encoded), 2)
    assert query.shape == (7, 2)
    assert found.to_frame(features).shape[0] == 6


def test_project__queries_have_the_label_of_their_positive_key(model, features):
    test = examples(5, seed=3)
    found = qk.project(model, test, features, batch_size=1, progress=False)
    asked = {e.text.positive[0].labels["boxes"] for e in test}
    assert set(found.query_labels("boxes")) == asked
    for i, label in enumerate(found.query_labels("boxes")):
        rows = (found.example == i) & found.positive
        assert found.labels["boxes"][int(rows.nonzero()[0])] == label
    with pytest.raises(QKPrismError, match="no label 'colour'"):
        found.query_labels("colour")
    with pytest.raises(QKPrismError, match="no feature for head L0H0"):
        found.coordinates(features, "boxes", "L0H0")


def test_project__saves_loads_and_draws(model, features, tmp_path):
    found = qk.project(model, examples(5, seed=3), features, progress=False)
    again = Projections.load(found.save(tmp_path / "projections"))
    assert torch.equal(again.vectors("L0H1")[0], found.vectors("L0H1")[0])
    assert again.labels == found.labels
    fig = again.plot(features, "first", "L0H1", color="first")
    assert "alignment" in fig.layout.title.text
    assert sum(len(trace.x) for trace in fig.data if trace.xaxis == "x2") == 5
    assert again.plot(features, "boxes", "L1H3").data


def test_project__many_labels_have_no_legend_and_the_figure_says_where_they_are(model, features):
    found = qk.project(model, examples(5, seed=3), features, progress=False)
    for n, many in ((3, False), (14, True)):
        named = replace(found, labels={"own": [f"v{i % n}" for i in range(len(found.example))]})
        fig = named.plot(features, "boxes", "L1H0", color="own")
        assert any(trace.showlegend for trace in fig.data) is not many
        caption = next(note.text for note in fig.layout.annotations if note.name == "caption")
        assert (f"{n} different labels" in caption.replace("<br>", " ")) is many


def test_principal_components__are_those_of_numpy_and_padded():
    points = torch.randn(30, 5, generator=torch.Generator().manual_seed(0)).double()
    found, shares = principal_components(points, 3)
    values = torch.linalg.eigvalsh(torch.cov(points.T)).flip(0)
    assert torch.allclose(found.var(0), values[:3])
    assert sum(shares) < 1
    nothing, none = principal_components(points[:, :0], 3)
    assert nothing.shape == (len(points), 3)
    assert none == [0.0, 0.0, 0.0]
    flat, _ = principal_components(points[:, :1], 3)
    assert flat.shape == (30, 3)
    assert flat[:, 1:].abs().max() == 0
