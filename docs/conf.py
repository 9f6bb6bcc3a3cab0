"""The site: `make docs` builds it with warnings as errors and then checks every link in the pages that came out."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
project = "qkprism"
author = "The qkprism authors"
copyright = author
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"qkprism {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sphinx = False
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(#[^)]*)?\)")


def name_files_outside(_app: object, page: str, text: list[str]) -> None:
    """A link out of docs/ works in the repository; on the site it is the file's name, and must still be there."""
    for link in OUTSIDE.finditer(text[0]):
        if not (ROOT / link[2]).exists():
            raise FileNotFoundError(f"docs/{page}.md links to {link[2]}, which is not there")
    text[0] = OUTSIDE.sub(r"`\2`", text[0])


def setup(app) -> None:
    app.connect("source-read", name_files_outside)
