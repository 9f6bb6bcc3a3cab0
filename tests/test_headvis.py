"""The export in the data format of HeadVis: its structure, and that its numbers are those of the model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import qkprism as qk
from qkprism.atlas.headvis import export_headvis
from qkprism.atlas.headvis_data import FOLDERS, METRICS, RUN, sampled
from qkprism.atlas.survey import windows_for
from test_atlas import WORDS, wrapped
from tiny import one_thread  # noqa: F401

HEADS = ["L0H1", "L1H2"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("headvis") / "data"
    return export_headvis(wrapped("llama"), place, HEADS, texts=[WORDS * 40], windows=20, length=24, progress=False)


def read(place: Path) -> Any:
    return json.loads(place.read_text())


def test_headvis__has_every_file_of_the_contract(exported: Path) -> None:
    assert all((exported / name).is_dir() for name in FOLDERS)
    config = read(exported / "config.json")
    assert config["heads"] == config["umap_heads"] == [[0, 1], [1, 2]]
    assert (config["n_layers"], config["n_heads"], config["n_intervals"]) == (2, 4, 10)
    assert config["metrics"] == list(METRICS) == list(config["metric_descriptions"])
    rows = read(exported / "scatter_data.json")
    assert [(row["layer"], row["head"]) for row in rows] == [(0, 1), (1, 2)]
    assert all(isinstance(row[name], float) for row in rows for name in config["metrics"])
    assert read(exported / "server_config.json") == read(exported / "attributions" / "manifest.json") == {}


def is_finite_number(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def test_headvis__has_the_fields_and_types_that_neuronpedia_puts_into_its_database(exported: Path) -> None:
    """What load-head-metrics.py and load-head-sequences.py read: a field that is missing stops them or is null."""
    config = read(exported / "config.json")
    assert all(isinstance(config[name], str) and config[name] for name in RUN if not name.startswith(("n_", "seq_")))
    assert (config["n_sequences"], config["seq_len"]) == (20, 24)
    assert (config["dtype"], config["attn_implementation"]) == ("float32", "sdpa")
    names = ("self_attention_score", "prev_token_score", "pattern_entropy", "qk_distance", "qk_distance_variance")
    for row in read(exported / "scatter_data.json"):
        assert all(is_finite_number(row[name]) for name in (*names, "induction_score"))
        payload = read(exported / "heads" / f"L{row['layer']}H{row['head']}.json")
        for name in ("qk_distance_histogram", "histogram"):
            assert len(payload[name]["bin_edges"]) == len(payload[name]["bin_values"]) + 1
            assert all(type(count) is int for count in payload[name]["bin_values"])
        assert sum(payload["histogram"]["bin_values"]) == payload["statistics"]["n_samples"] == 20
        for side in ("top_query_tokens", "top_key_tokens"):
            assert all(isinstance(one["token"], str) and is_finite_number(one["weight"]) for one in payload[side])
        for one in payload["sequences"]:
            assert all(isinstance(token, str) for token in one["tokens"])
            assert all(type(index) is int and 0 <= index < one["seq_len"] ** 2 for index in one["attention_indices"])
            assert all(map(is_finite_number, one["attention_values"]))
            assert type(one["interval"]) is int
            assert is_finite_number(one["max_activation"])


def test_headvis__has_the_fields_that_its_page_reads(exported: Path) -> None:
    """Plots and tables name fields of a head; the clouds' arrays are as long as each other, with three dimensions."""
    config = read(exported / "config.json")
    assert config["head_data_pattern"].replace("{layer}", "1").replace("{head}", "2") == "L1H2.json"
    first = read(exported / "scatter_data.json")[0]
    assert set(config["metrics"]) | {"layer", "head"} == set(first)
    payload = read(exported / "heads" / "L1H2.json")
    assert all(set(payload[plot["key"]]) == {"bin_edges", "bin_values"} for plot in config["custom_plots"])
    assert all(set(payload[table["key"]][0]) == {"token", "weight"} for table in config["custom_tables"])
    assert set(config["statistics_display"]) == set(payload["statistics"])
    tokens = read(exported / "umap" / "sequences.json")
    cloud = read(exported / "umap" / "L1H2.json")
    for sequence, query, key in zip(cloud["seq_idx"], cloud["top_q"], cloud["top_k"], strict=True):
        assert key < query < len(tokens[str(sequence)])


def test_headvis__sequences_are_sparse_and_by_decile(exported: Path) -> None:
    tokens = read(exported / "umap" / "sequences.json")
    for name in HEADS:
        payload = read(exported / "heads" / f"{name}.json")
        assert {one["interval"] for one in payload["sequences"]} == set(range(1, 11))
        by_interval = sorted(payload["sequences"], key=lambda one: one["interval"])
        strongest = [one["max_activation"] for one in by_interval]
        assert strongest == sorted(strongest)
        for one in payload["sequences"]:
            assert len(one["attention_indices"]) == len(one["attention_values"])
            assert len(one["tokens"]) == one["seq_len"]
            assert one["tokens"] == tokens[str(one["sequence_id"])]
        for key in ("top_query_tokens", "top_key_tokens"):
            assert set(payload[key][0]) == {"token", "weight"}
        histogram = payload["qk_distance_histogram"]
        assert len(histogram["bin_edges"]) == len(histogram["bin_values"]) + 1
        pairs = sum(len(one["attention_indices"]) for one in payload["sequences"])
        assert sum(histogram["bin_values"]) == pairs


def test_headvis__values_are_the_models_own_attention(exported: Path) -> None:
    model, seen = wrapped("llama"), []
    ids = windows_for(model, [WORDS * 40], 24, 20, 0, False).ids[3]
    model.run(torch.tensor([list(ids)]), None, lambda call: seen.append(call.attention([2])[0, 0]), layers=[1])
    payload = read(exported / "heads" / "L1H2.json")
    told = next(one for one in payload["sequences"] if one["sequence_id"] == 3)
    expected = seen[0].flatten()[told["attention_indices"]]
    torch.testing.assert_close(torch.tensor(told["attention_values"]), expected, atol=1e-3, rtol=0)
    later = seen[0].clone().fill_diagonal_(0)[1:, 1:]
    assert told["max_activation"] == pytest.approx(float(later.max()), abs=1e-3)


def test_headvis__clouds_have_a_point_a_pair_and_no_views(exported: Path) -> None:
    for name in HEADS:
        cloud = read(exported / "umap" / f"{name}.json")
        n = len(cloud["seq_idx"])
        assert n > 20
        assert len(cloud["top_q"]) == len(cloud["top_k"]) == len(cloud["norms"]) == n
        assert set(cloud["pca"]) == {"Q", "K", "O", "V"}
        assert all(len(cloud["pca"][side][f"d{i}"]) == n for side in "QKOV" for i in range(3))
        assert "views" not in cloud
        assert cloud["clusters"] == []


def test_headvis__a_folder_that_is_used_is_left_alone(exported: Path) -> None:
    with pytest.raises(qk.QKPrismError, match="not empty"):
        export_headvis(wrapped("llama"), exported, HEADS)


def test_headvis__of_many_sequences_every_decile_has_twenty() -> None:
    found = sampled([{"max_activation": i / 1000} for i in range(1000)])
    assert [sum(one["interval"] == i for one in found) for i in range(1, 11)] == [20] * 10
