"""One function a figure: results in, plotly figure out. Figures read results and run no model."""

from qkprism.figures.heads import rank_figure, score_figure
from qkprism.figures.spectrum import spectrum_figure
from qkprism.figures.theme import feature_color, save_figure

__all__ = ["feature_color", "rank_figure", "save_figure", "score_figure", "spectrum_figure"]
