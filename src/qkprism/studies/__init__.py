"""The paper's studies as one call each: what is computed is kept, and the page is made from what is kept."""

from qkprism.studies.binding import BindingStudy, study_binding
from qkprism.studies.filter import FilterStudy, study_filter
from qkprism.studies.presets import PRESETS, Preset

__all__ = ["PRESETS", "BindingStudy", "FilterStudy", "Preset", "study_binding", "study_filter"]
