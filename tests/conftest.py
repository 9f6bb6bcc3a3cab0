"""Shapes in the library's type hints are checked while the tests run."""

from jaxtyping import install_import_hook

with install_import_hook("qkprism", "beartype.beartype"):
    import qkprism  # noqa: F401
