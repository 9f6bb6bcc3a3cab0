"""What a release says of itself: one version everywhere, a changelog that has it, files that are named and there."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LETTERS = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md", "CHANGELOG.md")


def test_version__is_one_and_the_changelog_has_its_date():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in citation
    date = re.search(r"^date-released: (\S+)$", citation, re.MULTILINE)[1]
    newest = re.findall(r"^## \[(.+?)\](?: - (.+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[:2] == [("Unreleased", ""), (PROJECT["version"], date)]


def test_letters__name_files_that_are_there():
    missing = []
    for letter in LETTERS:
        text = (ROOT / letter).read_text()
        links = re.findall(r"\]\((?!https?://)([^)#]+)", text)
        paths = re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]+|test_\w+\.py)`", text)
        homes = [path if "/" in path else f"tests/{path}" for path in [*links, *paths]]
        missing += [
            (letter, path) for path in homes if not (ROOT / path).exists() and not (ROOT / Path(path).name).exists()
        ]
    assert missing == []
