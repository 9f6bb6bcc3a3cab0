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
TEXT = "The cat is in box A, the coin is in box B. The cat is in box"
HEAD = "L18H6"
WIDTH, HEIGHT, SCALE = 1000, 1000, 0.68
TAKEN = {"text": TEXT, "head": HEAD, "part": "match", "kind": "ablate"}
VIEWS = {
    "explorer-heads": ({"view": "heads", "head": HEAD}, ".head-sentence", "section[aria-label=Map]"),
    "explorer-why": ({"view": "why", "text": TEXT, "head": HEAD}, ".key-row", ".answer"),
    "explorer-whatif": ({"view": "whatif", **TAKEN}, ".change", "section[aria-label='What happens']"),
}  # an address, what is waited for, what is seen


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
    for name, (state, awaited, seen) in VIEWS.items():
        page.goto(f"{address}#{urlencode(state)}")
        page.wait_for_selector(f"{awaited} >> visible=true")
        page.wait_for_function("() => document.getElementById('main').getAttribute('aria-busy') !== 'true'")
        page.wait_for_timeout(1500)  # arcs are asked for last
        _save(page.locator(f"{seen} >> visible=true").first, name, scheme)
    page.goto(f"{address}#{urlencode({'view': 'heads', 'head': HEAD})}")
    page.locator(".feature").first.evaluate("card => { card.open = true; }")
    page.locator(".feature").first.locator("text=See keys and queries").click()
    page.locator("select[aria-label=Dimensions]").select_option("1")
    page.wait_for_timeout(800)
    _save(page.locator(".cloud"), "explorer-cloud", scheme)


def _save(seen: Any, name: str, scheme: str) -> None:
    path = PLACE / f"{name}-{scheme}.png"
    seen.screenshot(path=path)
    print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
