"""Vectors from TransformerLens and nnsight give the features of qkprism's own pass (`make test-others`)."""

from __future__ import annotations

import importlib

import pytest
import torch
from marked_vectors import BOXES, tiny_llama

import qkprism as qk

LAYERS = [1, 2]  # in the first layer all queries are the same word at nearly the same place: nothing to centre


@pytest.fixture(scope="module")
def contrast():
    return qk.Contrast.read(BOXES)[:96]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, contrast):
    return str(tiny_llama(tmp_path_factory.mktemp("others") / "model", contrast))


@pytest.fixture(scope="module")
def expected(folder, contrast):
    model = qk.load(folder, quiet=True, device="cpu", dtype="float32")
    heads = [qk.Head(layer, number) for layer in LAYERS for number in range(4)]
    features = qk.decompose(model, contrast, heads=heads, progress=False)
    return {head: features[contrast.name, head] for head in heads}


@pytest.mark.parametrize("library", ["transformerlens", "nnsight"])
def test_capture__gives_the_features_of_the_models_own_pass(library, folder, contrast, expected):
    capture = importlib.import_module(f"{library}_vectors").capture
    features = qk.decompose(capture(folder, contrast, LAYERS), progress=False)
    found = {head: feature for (_, head), feature in features.items()}
    assert list(found) == list(expected)
    for head, feature in expected.items():
        scale = feature.covariance.abs().max()
        assert feature.rank > 0
        assert scale > 0.1
        torch.testing.assert_close(found[head].covariance, feature.covariance, rtol=0, atol=float(1e-4 * scale))
        torch.testing.assert_close(found[head].spectrum.t, feature.spectrum.t, rtol=1e-2, atol=1e-2)
        assert found[head].gap_t == pytest.approx(feature.gap_t, abs=1e-3)
        assert (found[head].rank, found[head].rank_heldout) == (feature.rank, feature.rank_heldout)
