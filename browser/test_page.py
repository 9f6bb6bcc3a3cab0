"""The explorer's page in a real browser: asked, clicked, gone back; and whether everybody can use it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest

from qkprism.atlas.explain import explain
from qkprism.contrasts import Text
from test_atlas import WORDS, explained
from test_explore import HOSTILE

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
BOXES = "The hat is in box O, the jam is in box Z. The jam is in box"


def state_of(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(page.url.partition("#")[2]).items()}


def test_browser__a_person_asks_why_clicks_a_token_and_a_head_and_goes_back(watched: Any, served: str) -> None:
    page = watched
    page.goto(f"{served}#view=why")
    page.fill("#prompt", WORDS)
    page.press("#prompt", "Enter")
    page.wait_for_selector(".key-row")
    assert state_of(page)["text"] == WORDS
    tokens = page.locator(".token")
    last = tokens.count() - 1
    assert "query" in tokens.nth(last).get_attribute("class")
    tokens.nth(9).click()
    page.wait_for_selector(".token.query[data-place='9']")
    assert state_of(page)["query"] == "9"
    assert page.locator(".token.unseen").count() == last - 9
    head = page.locator(".head-row").nth(2)
    name = head.get_attribute("data-head")
    head.click()
    page.wait_for_selector(f".head-row.chosen[data-head='{name}']")
    page.wait_for_function("name => document.getElementById('row-title').textContent.startsWith(name)", arg=name)
    assert state_of(page)["head"] == name
    said = page.locator(".why .computed").text_content()
    assert said.startswith(f"{name} attends from")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function("name => !document.getElementById('row-title').textContent.startsWith(name)", arg=name)
    page.go_back()
    page.wait_for_function("said => document.querySelector('.why .computed').textContent === said", arg=said)
    page.reload()
    page.wait_for_function("said => document.querySelector('.why .computed')?.textContent === said", arg=said)
    assert page.input_value("#prompt") == WORDS


def test_browser__the_map_opens_a_head_by_click_and_by_name(watched: Any, served: str) -> None:
    page = watched
    page.goto(f"{served}#view=heads")
    page.click(".cell[data-head='L1H2']")
    page.wait_for_selector(".head-panel h3")
    assert state_of(page)["head"] == "L1H2"
    page.fill("#find", "l0h3")
    page.press("#find", "Enter")
    page.wait_for_selector(".head-panel h2:text-is('L0H3')")
    page.select_option("#score", "entropy")
    page.wait_for_selector(".cell[aria-label^='L0H0: entropy']")
    assert state_of(page) == {"view": "heads", "head": "L0H3", "score": "entropy"}
    page.fill("#find", "L9H9")
    page.press("#find", "Enter")
    page.wait_for_selector("#status.problem")


def test_browser__hostile_prompts_are_shown_as_themselves(watched: Any, served: str) -> None:
    page = watched
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{served}#{urlencode({'text': HOSTILE, 'head': 'L0H0'})}")
    page.wait_for_selector(".key-row")
    assert page.locator("main img").count() == 0
    shown = "".join(page.locator(".token").all_text_contents())
    assert shown.startswith("<imgĠsrc=xĠonerror=alert(1)></script>Ġ${x}Ġ")
    told = page.evaluate("async () => (await import('./static/letters.js')).visible('a\\u202eb\\u0000c\\ud800\\n')")
    assert told == "a⟨U+202E⟩b⟨U+0000⟩c⟨U+D800⟩⏎"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_browser__a_mailed_page_is_the_same_view_and_asks_nothing_of_anybody(watched: Any, tmp_path: Path) -> None:
    model, atlas = explained()
    why = explain(model, Text(HOSTILE[:50]), atlas=atlas, top=3)
    page, second = watched, why.edges[1]
    page.goto(why.save(tmp_path / "why.html").as_uri())
    page.wait_for_selector(".key-row")
    assert page.locator(".token").count() == len(why.tokens)
    assert page.locator(".why .computed").text_content() == why.edges[0].sentence
    page.locator(".head-row").nth(1).click()
    page.wait_for_function(
        "said => document.querySelector('.why .computed').textContent === said", arg=why.edges[1].sentence
    )
    assert state_of(page)["head"] == str(second.head)
    assert page.locator("main img").count() == 0


def test_browser__what_if_changes_with_the_slider_and_the_address_says_it_all(watched: Any, served: str) -> None:
    page = watched
    page.goto(f"{served}#{urlencode({'view': 'whatif', 'text': WORDS, 'head': 'L1H2', 'key': '9', 'target': '20'})}")
    page.wait_for_selector(".change")
    said = page.locator(".whatif .computed").text_content()
    assert said.startswith("Exchanging match between")
    page.check("#edit-steer")
    page.wait_for_function("said => document.querySelector('.whatif .computed').textContent !== said", arg=said)
    page.locator("#edit-amount").press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.whatif .computed').textContent.includes('by 1.1')")
    page.locator(".whatif .token[data-place='5']").click()
    page.wait_for_function("() => document.querySelector('.whatif .computed').textContent.includes('(token 5)')")
    kept = {"view": "whatif", "kind": "steer", "amount": "1.1", "key": "5", "target": "20", "head": "L1H2"}
    assert kept.items() <= state_of(page).items()
    said = page.locator(".whatif .computed").text_content()
    page.reload()
    page.wait_for_function("said => document.querySelector('.whatif .computed')?.textContent === said", arg=said)


def test_browser__the_conditional_swap_is_chosen_where_it_is_possible_and_else_told_why_not(
    watched: Any, bound: str
) -> None:
    page, state = watched, {"view": "whatif", "text": WORDS, "head": "L1H2", "key": "9", "target": "20"}
    page.goto(f"{bound}#{urlencode({**state, 'run': 'twins'})}")
    page.wait_for_selector(".change")
    said = page.locator(".whatif .computed").text_content()
    assert said.startswith("Exchanging order and lexical between")
    assert page.locator("#edit-lacking").text_content() == ""
    page.check("#edit-conditional")
    page.wait_for_function("() => document.querySelector('.whatif .computed').textContent.includes('as its place')")
    assert state_of(page)["kind"] == "conditional"
    assert page.locator(".whatif .computed").text_content() != said
    for what, why in (
        ("run:one", "needs features in the contrast metric"),
        ("part:salience", "a part of a logit has no"),
    ):
        page.select_option("#edit-what", what)
        page.wait_for_function("why => document.getElementById('edit-lacking').textContent.includes(why)", arg=why)
        assert page.locator("#edit-conditional").is_disabled()
        assert page.locator("#edit-swap").is_checked()
        page.wait_for_function(
            "() => !document.querySelector('.whatif .computed').textContent.includes('as its place')"
        )


def test_browser__a_view_is_pinned_and_named_and_comes_back(watched: Any, served: str) -> None:
    page = watched
    page.goto(f"{served}#view=heads&head=L1H2&score=entropy")
    page.wait_for_selector(".head-panel h3")
    page.fill("#pin-name", "<b>mine</b>")
    page.press("#pin-name", "Enter")
    page.click("#tabs >> text=Start")
    page.click(".pins >> text=<b>mine</b>")
    page.wait_for_selector(".head-panel h2:text-is('L1H2')")
    assert state_of(page) == {"view": "heads", "head": "L1H2", "score": "entropy"}


def test_browser__heads_are_drawn_by_two_scores(watched: Any, served: str) -> None:
    page = watched
    page.goto(f"{served}#{urlencode({'view': 'heads', 'across': 'entropy', 'up': 'attention: first token'})}")
    page.wait_for_selector(".point")
    assert page.locator(".point").count() == 8
    page.locator(".point[data-name='L1H2']").click()
    page.wait_for_selector(".head-panel h2:text-is('L1H2')")
    page.fill("#beside", "l0h1")
    page.press("#beside", "Enter")
    page.wait_for_selector(".head-panel h2:text-is('L0H1')")
    for kind in ("SVG", "PNG"):
        with page.expect_download() as taken:
            page.locator(f".heads-view >> text=Save as {kind}").first.click()
        start = Path(taken.value.path()).read_bytes()[:8]
        assert start.startswith(b"<svg" if kind == "SVG" else b"\x89PNG")


def test_browser__a_contrast_is_tried_on_the_default_model_and_used(watched: Any, default: str) -> None:
    """Found, decomposed, opened, seen, taken away: what a new user does."""
    page = watched
    page.goto(f"{default}#view=contrast&template=boxes")
    page.wait_for_selector(".drafted .token")
    assert page.locator("section[aria-label=Check] >> text=does not tell").count() == 4
    page.fill("#trial-n", "24")
    page.fill("#trial-top", "1")
    page.fill("#trial-place", "../out")
    page.click("section[aria-label=Run] button[type=submit]")
    page.wait_for_selector("#status.problem >> text=leads out")
    page.fill("#trial-place", "runs/mine")
    page.click("section[aria-label=Run] button[type=submit]")
    page.wait_for_selector("section[aria-label=Run] >> text=Saved in", timeout=300_000)
    head = page.locator("section[aria-label=Run] td .link").first.text_content()
    page.locator("section[aria-label=Run] td .link").first.click()
    page.wait_for_selector(f".head-panel h2:text-is('{head}')")
    assert head in page.locator(".head-sentence").text_content()
    see_keys_and_queries(page)
    page.goto(f"{default}#{urlencode({'view': 'why', 'text': BOXES, 'head': head})}")
    page.wait_for_selector("#method")
    with page.expect_response(lambda one: one.url.endswith("api/row")) as answered:
        page.select_option("#method", "sequential")
    assert answered.value.request.post_data_json["method"] == "sequential"
    assert answered.value.ok
    assert state_of(page)["method"] == "sequential"
    page.locator(".why .token").nth(9).hover()
    page.wait_for_selector(".arc.strong, .arc.into", state="attached")
    page.goto(f"{default}#{urlencode({'view': 'whatif', 'text': BOXES, 'head': head, 'run': 'runs/mine'})}")
    page.wait_for_selector(".change")
    assert "controls take it to" in page.locator(".whatif .computed").text_content()
    page.click("#tabs >> text=Run")
    with page.expect_download() as taken:
        page.click("button[aria-label='Save as CSV: features']")
    rows = list(csv.DictReader(Path(taken.value.path()).read_text().splitlines()))
    assert {row["head"] for row in rows} == {head}


def see_keys_and_queries(page: Any) -> None:
    """The cloud: chosen by value, by a line around points, and by the keyboard alone."""
    page.locator(".feature").first.evaluate("card => { card.open = true; }")
    page.locator(".feature >> text=See keys and queries").first.click()
    cloud = page.locator(".cloud").first
    canvas = cloud.locator("canvas")
    canvas.wait_for()
    chosen = cloud.locator("b >> text=/points? chosen/")
    cloud.locator("select[aria-label='Colour by']").select_option(label="key or query")
    cloud.locator(".legend button").nth(1).click()
    assert chosen.text_content().startswith("64 points")
    cloud.locator("text=Let go").click()
    assert chosen.count() == 0
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    corners = [(0.01, 0.01), (0.99, 0.01), (0.99, 0.6), (0.99, 0.99), (0.5, 0.99), (0.01, 0.99)]
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.mouse.down()
    for x, y in corners:
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    page.mouse.up()
    n = int(chosen.text_content().split()[0])
    assert n > 64  # all keys and queries
    canvas.press("Escape")
    assert chosen.count() == 0
    canvas.press("ArrowRight")
    assert cloud.locator(".pointed-at .quote").count() == 1
    canvas.press(" ")
    assert chosen.text_content() == "1 point chosen"
    cloud.locator("select[aria-label='Dimensions']").select_option("1")
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    canvas.press("Shift+ArrowLeft")
    page.wait_for_function("([canvas, before]) => canvas.toDataURL() !== before", arg=[canvas.element_handle(), before])


def test_browser__a_run_can_be_cancelled(watched: Any, default: str) -> None:
    page = watched
    page.goto(f"{default}#view=contrast&template=induction")
    page.wait_for_selector(".drafted .token")
    page.fill("#trial-n", "2000")
    page.click("section[aria-label=Run] button[type=submit]")
    page.wait_for_selector("section[aria-label=Run] >> text=/\\d+ of 2000/")
    page.click("section[aria-label=Run] >> text=Cancel")
    page.wait_for_selector("section[aria-label=Run] >> text=nothing was saved")


VIEWS = {
    "start": ".map .cell",
    "why": ".why .key-row",
    "whatif": ".change",
    "heads": ".head-panel h3",
    "contrast": ".drafted .token",
    "run": ".code",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe__finds_nothing_serious_and_nothing_is_wider_than_the_page(
    browser: Any, served: str, scheme: Any, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    for view, awaited in VIEWS.items():
        page.goto(f"{served}#{urlencode({'view': view, 'text': WORDS, 'head': 'L1H2'})}")
        page.wait_for_selector(awaited)
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run(document)")["violations"]
        wrong = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert wrong == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
    context.close()
