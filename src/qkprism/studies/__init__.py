"""The paper's studies as one call each: what is computed is kept, and the page is made from what is kept."""

from qkprism.studies.binding import study_binding
from qkprism.studies.binding_study import BindingStudy
from qkprism.studies.comparing import ComparedStudies, compare
from qkprism.studies.filter import FilterStudy, study_filter
from qkprism.studies.presets import PRESETS, StudyPreset

__all__ = [
    "PRESETS",
    "BindingStudy",
    "ComparedStudies",
    "FilterStudy",
    "StudyPreset",
    "compare",
    "study_binding",
    "study_filter",
]
