"""The paper's prompts: `binding` and `filtering`, with our own words, for any tokenizer."""

from qkprism.tasks.binding import BindingTask, binding
from qkprism.tasks.categories import CATEGORIES, Category
from qkprism.tasks.filtering import LISTINGS, FilteringTask, filtering
from qkprism.tasks.schemas import PHRASINGS, SCHEMAS, Phrasing, Schema

__all__ = [
    "CATEGORIES",
    "LISTINGS",
    "PHRASINGS",
    "SCHEMAS",
    "BindingTask",
    "Category",
    "FilteringTask",
    "Phrasing",
    "Schema",
    "binding",
    "filtering",
]
