"""What needs more than the library itself: UMAP, and a browser for images. CI has both."""

import os
import shutil
from importlib.util import find_spec

import plotly.graph_objects as go
import pytest
import torch

from one_head import decompose_vector_sets
from qkprism import Projections, QKPrismError, Vectors
from qkprism.figures import save_figures
from qkprism.heads import Head
from qkprism.results import projections


def needs(there, what):
    if not there:
        assert not os.environ.get("QKPRISM_REQUIRE_ALL"), f"{what} must be installed here"
        pytest.skip(f"{what} is not installed")


@pytest.fixture(scope="module")
def planted():
    """Two values, which queries and keys share along one direction, and the projections of 60 examples."""
    random = torch.Generator().manual_seed(0)
    value = torch.randint(2, (200,), generator=random) * 2.0 - 1
    direction = torch.nn.functional.one_hot(torch.tensor(0), 8).float()
    query, positive, negative = (
        sign * value[:, None] * direction + 0.1 * torch.randn(200, 8, generator=random) for sign in (1, 1, -1)
    )
    features = _features(query, positive, negative)
    keys = torch.stack([positive[:60], negative[:60]], 1).flatten(0, 1)
    labels = tuple(side * v for v in value[:60].tolist() for side in (1, -1))
    vectors = Projections(
        {Head(0, 0): query[:60]},
        {Head(0, 0): keys},
        torch.arange(120) // 2,
        torch.arange(120) % 2 == 0,
        {"value": labels},
    )
    return features, vectors


def _features(query, positive, negative):
    sets = {"value": Vectors(query, positive, negative), "other": Vectors(query.flip(1), positive, negative.flip(1))}
    return decompose_vector_sets(sets, rank=2)


def test_umap__keys_lie_with_the_queries_of_their_value(planted):
    needs(find_spec("umap"), "umap-learn")
    features, vectors = planted
    found = vectors.umap(features, "value", "L0H0")
    assert {name: tuple(points.shape) for name, points in found.items()} == {
        "key": (120, 2),
        "query": (60, 2),
        "whole_key": (120, 2),
        "whole_query": (60, 2),
    }
    again = vectors.umap(features, "value", "L0H0")
    assert all(torch.equal(found[name], again[name]) for name in found)
    nearest = torch.cdist(found["query"], found["key"]).argmin(1)
    same = [vectors.labels["value"][int(k)] == v for k, v in zip(nearest, vectors.query_labels("value"), strict=True)]
    assert sum(same) > 0.9 * len(same)
    assert len(vectors.plot(features, "value", "L0H0", umap=True).layout.annotations) >= 6


def test_umap__says_what_is_missing(planted, monkeypatch):
    features, vectors = planted
    monkeypatch.setattr(projections, "find_spec", lambda _: None)
    with pytest.raises(QKPrismError, match="pip install 'umap-learn"):
        vectors.plot(features, "value", "L0H0", umap=True)


def test_save_figures__as_images_with_one_browser(tmp_path):
    needs(find_spec("kaleido"), "kaleido")
    needs(any(map(shutil.which, ("chromium", "google-chrome", "chrome"))), "Chrome or Chromium")
    figures = {name: go.Figure(go.Scatter(y=[1, 2])) for name in ("one", "two")}
    assert save_figures(figures, tmp_path) == f"2 figures as .html and .png in {tmp_path}"
    for name in figures:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_save_figures__says_why_there_are_no_images(tmp_path, monkeypatch):
    monkeypatch.setattr("qkprism.figures.saving.find_spec", lambda _: None)
    said = save_figures({"one": go.Figure()}, tmp_path)
    assert "1 figures as .html" in said
    assert "kaleido" in said
    assert not list(tmp_path.glob("*.png"))


def test_save_figures__removes_what_an_earlier_call_wrote_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr("qkprism.figures.saving.find_spec", lambda _: None)
    save_figures({"one": go.Figure(), "two": go.Figure()}, tmp_path)
    (tmp_path / "two.png").write_bytes(b"of a time with a browser")
    (tmp_path / "notes.html").write_text("mine")
    save_figures({"one": go.Figure()}, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figures.json", "notes.html", "one.html", "plotly.min.js"]
    (tmp_path / "one.png").write_bytes(b"of a time with a browser")
    save_figures({"one": go.Figure()}, tmp_path)
    assert not (tmp_path / "one.png").exists()
    for bad in ('["one"]', '{"qkprism figures": ["../notes", 3, "notes.d/x"]}', "{"):
        (tmp_path / "figures.json").write_text(bad)
        save_figures({"three": go.Figure()}, tmp_path)
        assert (tmp_path / "one.html").exists()
        assert (tmp_path / "notes.html").read_text() == "mine"
