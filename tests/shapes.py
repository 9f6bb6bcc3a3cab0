"""What jaxtyping calls to check a function: its shapes. All other types are mypy's."""

from pathlib import Path

from beartype import beartype

SOURCE = Path(__file__).parent.parent / "src"

ARRAYS = ("Float", "Int", "Bool", "Complex")
FROM_OUTSIDE = ("Vectors.__init__",)  # takes arrays and lists for tensors, and says itself what does not fit


def modules_with_shapes():
    """The modules of the library that tell shapes: in the others a check would only cost time."""
    files = [file for file in SOURCE.rglob("*.py") if "jaxtyping" in file.read_text(encoding="utf-8")]
    return [".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in files]


def shapes_only(function):
    """The function with only the annotations that tell shapes, checked when it is called."""
    hints = {name: hint for name, hint in function.__annotations__.items() if _has_shape(hint)}
    if not hints or function.__qualname__ in FROM_OUTSIDE:
        return function
    function.__annotations__ = hints
    return beartype(function)


def _has_shape(hint):
    return any(f"{kind}{bits}[" in str(hint) for kind in ARRAYS for bits in ("", "32", "64"))
