"""A notebook that was run and exported to HTML: the page within it is hovered and clicked, with the network blocked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import qkprism as qk
from test_atlas import WORDS, explained

CODE = {"cell_type": "code", "id": "one", "metadata": {}, "execution_count": 1, "source": "qk.explain(...)"}


def exported(result: Any) -> str:
    """The HTML of a notebook with one cell that shows a result."""
    if not os.environ.get("QKPRISM_REQUIRE_ALL"):
        pytest.importorskip("nbconvert")
    import nbconvert
    import nbformat

    shown = {"text/html": result._repr_html_(), "text/plain": repr(result)}
    output = {"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": shown}
    language = {"language_info": {"name": "python", "pygments_lexer": "python3"}}
    body = {"cells": [{**CODE, "outputs": [output]}], "metadata": language, "nbformat": 4, "nbformat_minor": 5}
    return str(nbconvert.HTMLExporter().from_notebook_node(nbformat.reads(json.dumps(body), 4))[0])


def test_notebook__a_page_within_an_exported_one_answers_without_a_network(browser: Any, tmp_path: Path) -> None:
    model, atlas = explained()
    found = qk.explain(model, WORDS, atlas=atlas, progress=False)
    (tmp_path / "notebook.html").write_text(exported(found))
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    page.goto((tmp_path / "notebook.html").as_uri(), wait_until="domcontentloaded")
    frame = page.frame_locator("iframe[title=why]")
    frame.locator(".key-row").first.wait_for()
    frame.locator(".token").nth(3).hover()
    assert "token 3: attention" in frame.locator(".pointed-at").inner_text()
    second = frame.locator(".head-row").nth(1)
    name = second.get_attribute("data-head")
    second.click()
    frame.locator(f"#row-title:has-text('{name}')").wait_for()
    box = page.locator("iframe[title=why]").bounding_box()
    assert box is not None
    assert box["height"] > 400
    context.close()
