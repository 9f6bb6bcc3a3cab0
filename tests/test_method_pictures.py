"""The pictures of docs/method.md show the failures that they are drawn for: arrows and dots, without the image."""

import importlib.util

import numpy as np
import pytest

from blocks import ROOT

SPEC = importlib.util.spec_from_file_location("method_pictures", ROOT / "examples" / "method_pictures.py")
pictures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pictures)


def arrows(figure):
    """How far each arrow goes, right and up."""
    return [(a.x - a.ax, a.y - a.ay) for a in figure.layout.annotations if a.ax is not None]


def test_centring__without_it_the_direction_is_salience_and_with_it_the_value():
    (kept_right, kept_up), (off_right, off_up) = arrows(pictures.centring())
    assert abs(kept_right) > 5 * abs(kept_up)
    assert abs(off_up) > 5 * abs(off_right)


def test_metric__only_the_contrast_metric_lands_in_both_coordinates():
    orthogonal, ours, orthogonal_changed, ours_changed = arrows(pictures.metric())
    assert [orthogonal, ours, ours_changed] == [pytest.approx((2, 0), abs=0.1)] * 3  # from one colour to the other
    assert orthogonal_changed[0] > 1.5 * ours_changed[0]


def test_controls__noise_beats_gaussian_subspaces_and_the_feature_beats_noise():
    found = {row.name: np.array(row.x) for row in pictures.controls().data}
    assert found["permuted labels"].min() > found["Gaussian"].max()
    assert found["the feature"] > found["permuted labels"].max()
