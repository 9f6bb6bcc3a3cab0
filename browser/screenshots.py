"""The pictures of the docs, in both themes: python browser/screenshots.py RUN...

Name runs relatively, since the pictures show their names: in a folder after `qkprism decompose boxes --top 4 --save
runs/boxes`, give runs/boxes.

The explorer is served as for anybody and looked at in chromium; each view is saved as docs/_static/NAME-THEME.png.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

PLACE = Path(__file__).parent.parent / "docs" / "_static"
TEXT = "The hat is in box O, the jam is in box Z. The jam is in box"
HEAD = "L18H6"
WIDTH, HEIGHT, SCALE = 1100, 760, 0.8
LARGEST = 120_000  # bytes of a picture
VIEWS = {"explorer-heads": "heads", "explorer-why": "why", "explorer-whatif": "whatif"}
AWAITED = {"heads": ".head-sentence", "why": ".key-row", "whatif": ".change"}


def main(runs: list[str]) -> None:
    """Serve, look, save."""
    command = [sys.executable, "-m", "qkprism", "explore", "--no-browser", *runs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, sync_playwright() as playwright:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().split()[-1]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, device_scale_factor=SCALE
                )
                _views(context.new_page(), address, scheme)
            browser.close()
        finally:
            process.terminate()


def _views(page: Any, address: str, scheme: str) -> None:
    page.set_default_timeout(180_000)
    for name, view in VIEWS.items():
        page.goto(f"{address}#{urlencode({'view': view, 'text': TEXT, 'head': HEAD})}")
        page.wait_for_selector(f"{AWAITED[view]} >> visible=true")
        page.wait_for_function("document.getElementById('main').getAttribute('aria-busy') !== 'true'")
        page.wait_for_timeout(1500)  # arcs are asked for last
        if view == "heads":
            page.locator(".cell.chosen >> visible=true").evaluate("cell => cell.scrollIntoView({ block: 'center' })")
        else:
            page.evaluate("document.querySelector('main').scrollIntoView()")
        _save(page, name, scheme)
    page.goto(f"{address}#{urlencode({'view': 'heads', 'head': HEAD})}")
    page.locator(".feature").first.evaluate("card => { card.open = true; }")
    page.locator(".feature").first.locator("text=See keys and queries").click()
    page.locator("select[aria-label=Dimensions]").select_option("1")
    page.locator(".cloud .controls").scroll_into_view_if_needed()
    page.wait_for_timeout(800)
    _save(page, "explorer-cloud", scheme)


def _save(page: Any, name: str, scheme: str) -> None:
    path = PLACE / f"{name}-{scheme}.png"
    page.screenshot(path=path)
    print(f"{path.name}: {path.stat().st_size:,} bytes")
    assert path.stat().st_size < LARGEST


if __name__ == "__main__":
    main(sys.argv[1:])
