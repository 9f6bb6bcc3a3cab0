"""Shapes in the library's type hints are checked while the tests run."""

import gc

import pytest
from jaxtyping import install_import_hook

from shapes import modules_with_shapes

LONG = ("intervene", "default_model", "studies", "pipeline", "study_filter", "extras", "validate", "planted_truth")

# it stays, because the library imports its modules when they are wanted; a module without shapes is left as it is
install_import_hook(modules_with_shapes(), "shapes.shapes_only")


def pytest_collection_modifyitems(config, items):
    """Families that came after the installed transformers are left out; the files that take longest begin first."""
    from tiny import too_new

    later = [item for item in items if any(map(too_new, families(item)))]
    config.hook.pytest_deselected(items=later)
    items[:] = [item for item in items if item not in later]
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONG)


def families(item):
    """The families of models that a test is about: its parameters, and those it is marked with."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [*parameters, *(name for mark in item.iter_markers("family") for name in mark.args)]


def pytest_collection_finish():
    """What was imported stays, so nobody looks through it again: the library collects garbage between batches."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory):
    """The folder of a toy study whose heads are trained."""
    from qkprism.toy import train
    from toy_cells import JUDGED, OTHERS

    folder = tmp_path_factory.mktemp("toy")
    train([*JUDGED, *OTHERS], "quick", folder=folder / "heads")
    return folder


@pytest.fixture
def folder(tmp_path):
    """The folder of a tiny language model with its tokenizer."""
    from tiny import tiny
    from tokenizers_for_tests import byte_level

    tokenizer = byte_level()
    tiny("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "little")
    tokenizer.save_pretrained(tmp_path / "little")
    return tmp_path / "little"
