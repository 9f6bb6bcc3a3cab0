"""The page's files: as they are for the server, and as one self-contained page that can be mailed.

Modules import each other by lines of the form `import { a, b } from "./other.js";` and export named functions and
constants alone, so one script is made of them by putting them in order and leaving these lines and words out.
"""

from __future__ import annotations

import base64
import gzip
import re
from functools import cache
from html import escape
from importlib.resources import files

from plotly.offline import get_plotlyjs

from qkprism.errors import QKPrismError

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
STYLE = re.compile(r'<link rel="stylesheet" href="static/([a-z]+\.css)">')
PLOTLY = "plotly.min.js"  # of the plotly package; read when a figure is looked at
EXPORT = re.compile(r"^export (?=(?:async )?function |const |class )", re.MULTILINE)


def asset(name: str) -> str:
    """The text of one file of the page."""
    if name == PLOTLY:
        return get_plotlyjs()
    return (files("qkprism.explorer") / "static" / name).read_text(encoding="utf-8")


def asset_names() -> list[str]:
    """Every file of the page."""
    found = (entry.name for entry in (files("qkprism.explorer") / "static").iterdir())
    return sorted(name for name in found if kind_of(name))


def kind_of(name: str) -> str | None:
    """The media type of a file, None for one that is not of the page."""
    return TYPES.get(name[name.rfind(".") :])


def one_script(entry: str = "main.js") -> str:
    """A module and all that it imports as one script."""
    order: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise QKPrismError(f"The page's modules import each other in a circle: {' > '.join((*above, name))}.")
        if name not in order:
            for imported in IMPORT.findall(asset(name)):
                visit(imported, (*above, name))
            order.append(name)

    visit(entry, ())
    return "\n".join(EXPORT.sub("", IMPORT.sub("", asset(name))) for name in order)


def packed(text: bytes) -> str:
    """A text as a page holds it, gzip in base64: a fourth as long, and no letter of it can be read as markup."""
    return base64.b64encode(gzip.compress(text, mtime=0)).decode("ascii")


@cache
def _plotly() -> str:
    return packed(asset(PLOTLY).encode())


def one_page(title: str, data: bytes, *, figures: bool = False) -> str:
    """The page with its style, its script and its data (JSON) inside: it asks nothing of anybody.

    With `figures` it holds plotly too, which becomes a script when the first figure is looked at.
    """
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    plotly = f'<script type="application/gzip" id="plotly">{_plotly()}</script>' if figures else ""
    page = asset("index.html")
    for old, new in (
        ("<title>qkprism</title>", f"<title>qkprism: {escape(title)}</title>"),
        ("<!-- head -->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        (
            '<script type="module" src="static/main.js"></script>',
            f'<script type="application/gzip" id="data">{packed(data)}</script>'
            f'<script type="module">{one_script()}</script>{plotly}',
        ),
    ):
        if page.count(old) != 1:
            raise QKPrismError(f"index.html should hold {old} once.")
        page = page.replace(old, new)
    return STYLE.sub(lambda link: f"<style>{asset(link[1])}</style>", page)
