"""What a release says of itself: one version everywhere, a changelog that has it, files that are named and there."""

import re
import sys
import tomllib
from pathlib import Path

import claims

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "examples"))
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


def test_readme__shows_the_template_of_the_examples():
    shown = (ROOT / "README.md").read_text().split("```toml\n")[1].split("```")[0]
    assert shown == (ROOT / "examples" / "pronoun.toml").read_text()


def test_claims_page__is_what_the_file_says_and_names_pages_that_are_there():
    assert claims.PAGE.read_text() == claims.page(), "docs/claims.md is stale: run python tests/claims.py"
    pages = {page for claim in claims.claims() for page in claim["pages"]}
    assert [page for page in pages if page != "README" and not (ROOT / "docs" / f"{page}.md").exists()] == []
    for claim in claims.claims():
        for check in claim.get("quick", ()):
            assert {"run", "expect"} < set(check)
            re.compile(check.get("find", check.get("count")))


def test_notebooks__are_what_their_scripts_say():
    from make_notebooks import FOLDER, notebook

    scripts = sorted(FOLDER.glob("*.py"))
    assert len(scripts) >= 5
    stale = [path.name for path in scripts if path.with_suffix(".ipynb").read_text() != notebook(path.read_text())]
    assert stale == [], "run python examples/make_notebooks.py"
