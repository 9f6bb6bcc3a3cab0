"""One function a figure: results in, plotly figure out. Figures read results and run no model."""

from qkprism.figures.attribution import attribution_figure
from qkprism.figures.attributions import attributions_figure
from qkprism.figures.effects import effects_figure
from qkprism.figures.maps import score_figure
from qkprism.figures.ranks import rank_figure
from qkprism.figures.saving import save_figure, save_figures
from qkprism.figures.spectrum import spectrum_figure
from qkprism.figures.theme import feature_color
from qkprism.figures.validation import validation_figure

__all__ = [
    "attribution_figure",
    "attributions_figure",
    "effects_figure",
    "feature_color",
    "rank_figure",
    "save_figure",
    "save_figures",
    "score_figure",
    "spectrum_figure",
    "validation_figure",
]
