"""A notebook that was run and exported to HTML: the page within it is hovered and clicked, with the network blocked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qkprism as qk
from test_atlas import WORDS, explained
from test_pipeline import contrast

CODE = {"cell_type": "code", "metadata": {}, "execution_count": 1, "source": "..."}


def exported(*results: Any) -> str:
    """The HTML of a notebook in which each cell shows a result."""
    if not os.environ.get("QKPRISM_REQUIRE_ALL"):
        pytest.importorskip("nbconvert")
    import nbconvert
    import nbformat

    shown = [{"text/html": result._repr_html_(), "text/plain": "..."} for result in results]
    outputs = [{"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": one} for one in shown]
    cells = [{**CODE, "id": f"cell-{i}", "outputs": [output]} for i, output in enumerate(outputs)]
    language = {"language_info": {"name": "python", "pygments_lexer": "python3"}}
    body = {"cells": cells, "metadata": language, "nbformat": 4, "nbformat_minor": 5}
    return str(nbconvert.HTMLExporter().from_notebook_node(nbformat.reads(json.dumps(body), 4))[0])


class Figure:
    """A figure as a notebook shows it: with plotly inside."""

    def __init__(self, figure: Any) -> None:
        self._figure = figure

    def _repr_html_(self) -> str:
        return str(self._figure.to_html(full_html=False, include_plotlyjs=True))


@pytest.fixture
def notebook(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """An exported notebook with an explanation, features, effects, a figure and the page of a run; no network."""
    model, atlas = explained()
    texts = contrast(40)
    features = qk.decompose(model, texts, recipe=qk.Recipe(rank=2), progress=False)
    effects = qk.intervene(model, texts[:6], features, compare=qk.Comparison(draws=2), progress=False)
    why = qk.explain(model, WORDS, atlas=atlas, progress=False)
    page_of = qk.report(features, effects, atlas)
    (tmp_path / "notebook.html").write_text(exported(why, features, effects, Figure(effects.plot()), page_of))
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.set_default_timeout(60_000)
    page.goto((tmp_path / "notebook.html").as_uri(), wait_until="domcontentloaded")
    yield page
    context.close()
    assert wrong == []


def test_notebook__a_page_within_an_exported_one_answers_without_a_network(notebook: Any) -> None:
    frame = notebook.frame_locator("iframe[title=why]")
    frame.locator(".key-row").first.wait_for()
    frame.locator(".token").nth(3).hover()
    assert "token 3: attention" in frame.locator(".pointed-at").inner_text()
    second = frame.locator(".head-row").nth(1)
    name = second.get_attribute("data-head")
    second.click()
    frame.locator(f"#row-title:has-text('{name}')").wait_for()
    box = notebook.locator("iframe[title=why]").bounding_box()
    assert box is not None
    assert box["height"] > 400


def test_notebook__features_and_effects_are_tables_and_a_figure_that_is_hovered(notebook: Any) -> None:
    tables = notebook.locator(".jp-OutputArea-output table")
    assert ["rank" in table and "head" in table for table in tables.all_inner_texts()] == [True, True]
    drag = notebook.locator(".plotly-graph-div .nsewdrag").first
    drag.wait_for()
    drag.scroll_into_view_if_needed()
    box = drag.bounding_box()
    for i in range(20):
        notebook.mouse.move(box["x"] + (i + 0.5) / 20 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
        if notebook.locator(".hoverlayer .hovertext").count():
            break
    notebook.wait_for_selector(".hoverlayer .hovertext", timeout=10_000)


def test_notebook__the_page_of_features_and_effects_shows_the_proof_of_a_head(notebook: Any) -> None:
    frame = notebook.frame_locator("iframe[title=qkprism]")
    frame.locator("#tabs button[data-view=heads]").click()
    frame.locator(".heads-view .cell[data-head='L1H2']").click()
    row = frame.locator(".feature .proof-row").first
    row.wait_for()
    row.hover()
    assert frame.locator(".feature .proof-row[title*='The feature moves']").count()
    frame.locator("#tabs button[data-view=run]").click()
    frame.locator("button[data-figure=effects]").click()
    frame.locator(".figure-place .main-svg").first.wait_for()
