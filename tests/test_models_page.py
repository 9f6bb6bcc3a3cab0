"""docs/models.md says what the tests find."""

from models_page import PAGE, page
from tiny import one_thread  # noqa: F401


def test_models_page__is_what_the_tests_find() -> None:
    assert PAGE.read_text() == page(), "docs/models.md is stale: run python tests/models_page.py"
