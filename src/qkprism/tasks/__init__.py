"""The paper's prompts, with our own words, for any tokenizer."""

from qkprism.tasks.binding import BindingTask, binding
from qkprism.tasks.schemas import PHRASINGS, SCHEMAS, Phrasing, Schema

__all__ = ["PHRASINGS", "SCHEMAS", "BindingTask", "Phrasing", "Schema", "binding"]
