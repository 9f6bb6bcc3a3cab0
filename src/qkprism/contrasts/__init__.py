"""Contrasts: what a user asks. Marked texts and their files, and the templates that draw them."""

from qkprism.contrasts.contrast import Contrast, Written, check_name, located, text_digest
from qkprism.contrasts.examples import Example
from qkprism.contrasts.markup import Label, Labels, Span, Text

__all__ = ["Contrast", "Example", "Label", "Labels", "Span", "Text", "Written", "check_name", "located", "text_digest"]
