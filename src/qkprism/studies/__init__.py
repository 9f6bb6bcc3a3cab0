"""The paper's studies as one call each: what is computed is kept, and the page is made from what is kept."""

from qkprism.studies.binding import BindingStudy, study_binding
from qkprism.studies.comparing import Comparison, compare
from qkprism.studies.presets import PRESETS, Preset

__all__ = ["PRESETS", "BindingStudy", "Comparison", "Preset", "compare", "study_binding"]
