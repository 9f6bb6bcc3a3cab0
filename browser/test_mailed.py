"""Pages that were mailed, opened from a file with the network blocked: looked at, clicked, usable by everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_page import AXE

import qkprism as qk
from qkprism.explorer.keep import keep
from test_atlas import explained
from test_pipeline import contrast

VIEWS = ("start", "why", "whatif", "heads", "contrast", "run")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A features run that kept answers of the model, with the scores of heads and an effects run beside it."""
    model, atlas = explained()
    folder = tmp_path_factory.mktemp("mailed")
    texts = contrast(40)
    features = qk.decompose(model, texts, recipe=qk.Recipe(rank=2), progress=False)
    place = features.save(folder / "boxes")
    qk.find_heads(model, texts, progress=False).save(place / "heads")
    texts[:12].write(place / "contrast.jsonl")
    keep(model, place, atlas)
    effects = qk.intervene(model, texts[:6], features, compare=qk.Comparison(draws=2), progress=False).save(
        folder / "effects"
    )
    qk.report(place, atlas).save(folder / "boxes.html")
    qk.report(place, effects).save(folder / "both.html")
    qk.report(effects).save(folder / "effects.html")
    return folder


def offline(page: Any, file: Path, view: str = "") -> None:
    page.context.set_offline(True)
    page.goto(file.as_uri() + (f"#view={view}" if view else ""))
    page.wait_for_selector("#tabs button[aria-current=page]")
    page.wait_for_function("() => document.getElementById('main').getAttribute('aria-busy') !== 'true'")


def test_mailed__every_view_opens_and_numbers_lead_to_what_they_are_made_of(watched: Any, run: Path) -> None:
    page = watched
    offline(page, run / "boxes.html")
    page.wait_for_selector(".map .cell[data-head='L1H2']")
    page.locator(".sentences .number").nth(1).click()  # after the name of a head
    page.wait_for_selector("section[aria-label='boxes'] tr.best td:has-text('L')")
    page.go_back()
    page.locator(".sentences .link", has_text="L").first.click()
    page.wait_for_selector(".head-panel .feature")
    page.go_back()
    page.locator(".prompt-link").first.click()
    page.wait_for_selector(".key-row")
    page.locator(".head-row").nth(1).click()
    for view in VIEWS:
        page.click(f"#tabs button[data-view={view}]")
        page.wait_for_function("() => !document.querySelector('#status').textContent")
    for view in ("whatif", "contrast"):
        page.click(f"#tabs button[data-view={view}]")
        assert "qkprism explore boxes" in page.locator("main pre:visible").text_content()


def test_mailed__a_feature_is_seen_with_the_texts_that_were_kept(watched: Any, run: Path) -> None:
    page = watched
    offline(page, run / "boxes.html")
    best = qk.Features.load(run / "boxes").by_evidence()[0]
    page.goto(f"{(run / 'boxes.html').as_uri()}#view=heads&head={best.head}")
    page.wait_for_selector(".feature")
    page.locator(".feature button", has_text="See keys and queries").first.click()
    page.wait_for_selector(".feature .computed")


def test_mailed__effects_alone_show_every_control_in_the_panel_of_a_head(watched: Any, run: Path) -> None:
    page = watched
    effects = qk.Effects.load(run / "effects")
    offline(page, run / "effects.html", "heads")
    page.locator(f".cell[data-head='{effects.heads[0]}']").click()
    page.wait_for_selector(".feature .proof-row")
    methods = {entry.method for entry in effects.entries if entry.control == "feature"}
    assert page.locator(".feature .proof-row").count() == len(methods) * len({e.control for e in effects.entries})


def test_mailed__figures_are_drawn_without_the_network(watched: Any, run: Path) -> None:
    page = watched
    offline(page, run / "both.html", "run")
    page.locator("button[data-figure=effects]").click()
    page.wait_for_selector(".figure-place .main-svg")
    hover_and_save(page)


def hover_and_save(page: Any) -> None:
    """A figure that plotly drew tells a point that is pointed at, and is saved."""
    box = page.locator(".figure-place .nsewdrag").first.bounding_box()
    for i in range(20):  # along a line through the panel, until something is met
        page.mouse.move(box["x"] + (i + 0.5) / 20 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
        if page.locator(".hoverlayer .hovertext").count():
            break
    page.wait_for_selector(".hoverlayer .hovertext", timeout=10_000)
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as taken:
            page.locator(f".saves:visible >> text=Save as {kind}").first.click()
        assert Path(taken.value.path()).read_bytes().startswith(start)
        assert taken.value.suggested_filename == f"effects_effects.{kind.lower()}"


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_mailed__everybody_can_use_it(watched: Any, run: Path, view: str, scheme: str, width: int) -> None:
    page = watched
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    offline(page, run / "boxes.html", view)
    page.wait_for_timeout(200)
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [one["id"] for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert serious == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
