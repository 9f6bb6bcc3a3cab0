"""What jaxtyping calls to check a function: its shapes. All other types are mypy's."""

from beartype import beartype

ARRAYS = ("Float", "Int", "Bool", "Complex")
FROM_OUTSIDE = ("Vectors.__init__",)  # takes arrays and lists for tensors, and says itself what does not fit


def shapes_only(function):
    """The function with only the annotations that tell shapes, checked when it is called."""
    hints = {name: hint for name, hint in function.__annotations__.items() if _has_shape(hint)}
    if not hints or function.__qualname__ in FROM_OUTSIDE:
        return function
    function.__annotations__ = hints
    return beartype(function)


def _has_shape(hint):
    return any(f"{kind}{bits}[" in str(hint) for kind in ARRAYS for bits in ("", "32", "64"))
