"""docs/models.md says what the tests find."""

from models_page import FAMILIES, PAGE, families, page
from tiny import one_thread  # noqa: F401


def test_models_page__is_what_the_tests_find() -> None:
    assert PAGE.read_text() == page(), "docs/models.md is stale: run python tests/models_page.py"


def test_families__are_those_of_the_page() -> None:
    assert FAMILIES.read_text() == families(PAGE.read_text()), "families.json is stale: run python tests/models_page.py"
