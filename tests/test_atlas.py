"""The atlas: rotation undone, sums against loops, the exact split, surveys that are killed and go on."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import qkprism as qk
from mailed import answer_in
from qkprism.atlas.atlas import Atlas, HeadMeans
from qkprism.atlas.coverage import decides
from qkprism.atlas.explain import atlas_for, cached_atlas, explain, read_rows
from qkprism.atlas.explanation import EVEN, RESTS, edge_of, sentence_of
from qkprism.atlas.rows import STAGES
from qkprism.atlas.sums import KINDS, STRIDE, Kinds, LayerSums, add_call, empty_sums
from qkprism.atlas.survey import survey
from qkprism.atlas.windows import WindowBatch, Windows, cut, documents_of
from qkprism.cli import app
from qkprism.core.row_split import PARTS, REST, MatchDirections
from qkprism.core.variation import variation_of, without_first
from qkprism.errors import QKPrismError
from qkprism.heads import all_heads
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from qkprism.models.rotation import RotatedSlice, Rotation
from qkprism.runs import store
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

LENGTH = 41
WORDS = "The hat is in Box O, the jam is in Box Z. The jam is in Box Q and the pen is in Box A. "
# rotary full and partial, QK norm, learned positions, soft cap, sinks, window, the last dimensions, scaled, an encoder
SPLIT = [
    "llama",
    "llama_yarn",
    "gpt_neox",
    "qwen3",
    "gpt2",
    "gemma2",
    "gpt_oss",
    "mistral",
    "deepseek_v3",
    "modernbert",
]
ROTATED = {"llama": (0, 8), "gpt_neox": (0, 4), "gpt_oss": (0, 8), "deepseek_v3": (8, 8), "esm": (0, 8), "gpt2": None}


@cache
def wrapped(name: str) -> Model:
    return Model.wrap(tiny(name, vocab_size=len(byte_level())), byte_level())


def windows(n: int = 12, seed: int = 0) -> Windows:
    draw = torch.Generator().manual_seed(seed)
    lengths = [LENGTH if i % 3 else LENGTH - 12 for i in range(n)]
    ids = [tuple(torch.randint(5, len(byte_level()), (length,), generator=draw).tolist()) for length in lengths]
    return Windows(tuple(ids), tuple(range(n)), "random tokens")


@cache
def surveyed(name: str) -> Atlas:
    return survey(wrapped(name), [WORDS * 40, WORDS[7:] * 40], windows=10, length=LENGTH, progress=False)


@pytest.mark.parametrize("name", ROTATED)
def test_rotation__the_rotated_dimensions_are_found(name: str) -> None:
    expected = ROTATED[name] and RotatedSlice(*ROTATED[name])
    assert set(wrapped(name).rotated_slices.values()) == {expected}


def test_rotation__a_layer_without_rotation_is_told_from_the_others() -> None:
    assert list(wrapped("smollm3").rotated_slices.values()) == [RotatedSlice(0, 8), None]


@pytest.mark.parametrize("name", ["llama", "llama_yarn", "gpt_neox", "deepseek_v3"])
def test_rotation__back_takes_off_what_turn_puts_on(name: str) -> None:
    def visit(call: AttentionCall) -> None:
        rotation = Rotation.of(call, slices[call.layer])
        assert rotation is not None
        torch.testing.assert_close(rotation.turn(rotation.back(call.key)), call.key, atol=2e-6, rtol=1e-5)
        assert (rotation.back(call.key) - call.key)[:, :, 1:].abs().max() > 0.01

    model = wrapped(name)
    slices = model.rotated_slices
    model.run(torch.tensor([windows().ids[1]]), None, visit)


def test_rotation__one_that_cannot_be_undone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.models.llama.modeling_llama as modeling

    model = Model.wrap(tiny("llama"))
    flipped = lambda q, k, cos, sin: (q.flip(-1) + cos[:, None], k.flip(-1) + sin[:, None])  # noqa: E731
    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", flipped)
    with pytest.raises(QKPrismError, match=r"rotation of .* in layer 0 cannot be undone"):
        _ = model.rotated_slices


def gathered(model: Model, batch: WindowBatch) -> tuple[LayerSums, dict[str, Tensor]]:
    """The sums of layer 1, and the vectors that they are of."""
    found: dict[str, Tensor] = {}
    kinds = Kinds.of(batch, 0, torch.device("cpu"))
    sums: list[LayerSums] = []
    slices = model.rotated_slices

    def visit(call: AttentionCall) -> None:
        rotation = Rotation.of(call, slices[1])
        assert rotation is not None
        sums.append(empty_sums(call))
        centre = torch.linspace(-1, 1, 16).view(2, 8)
        add_call(sums[0], call, rotation, batch, kinds, centre)
        found["query"], found["key"] = rotation.back(call.query), rotation.back(call.key)
        found["centred"] = call.key - rotation.turn(centre[None, :, None].expand(1, -1, call.key.shape[2], -1))
        found["attention"] = call.attention()
        eye = torch.eye(8).expand(1, 8, 8)
        # R_t as a matrix for every position, to rotate by hand
        turned = [rotation.at([t]).turn(eye[:, :, None]).squeeze(2).squeeze(0) for t in range(call.key.shape[2])]
        found["turn"] = torch.stack(turned).mT  # token d d

    model.run(batch.input_ids, batch.there.long(), visit, layers=[1])
    return sums[0], found


def test_sums__equal_loops_over_tokens_and_rows() -> None:
    batch = WindowBatch.of(windows(4).ids)
    sums, seen = gathered(wrapped("llama"), batch)
    lengths = batch.there.sum(1).tolist()
    later = [(b, t) for b, n in enumerate(lengths) for t in range(1, n)]
    query = torch.stack([seen["query"][b, :, t] for b, t in later]).double()
    key = torch.stack([seen["key"][b, :, t] for b, t in later]).double()
    assert float(sums.tokens) == len(later)
    torch.testing.assert_close(sums.query, query.sum(0), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(sums.key, key.sum(0), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(sums.query_square, torch.einsum("nhd,nhe->hde", query, query), atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(sums.first_key, seen["key"][:, :, 0].sum(0).double(), atol=1e-5, rtol=1e-5)
    expected, rows = torch.zeros(2, 8, 8), 0
    for b, n in enumerate(lengths):
        for t in range(5, LENGTH, 5):  # the ends of eight equal stretches
            if t < n:
                there = torch.einsum("de,hse->hsd", seen["turn"][t].inverse(), seen["centred"][b, :, 1 : t + 1])
                spread = there - there.mean(1, keepdim=True)
                expected += spread.mT @ spread / t
                rows += 1
    assert float(sums.rows) == rows
    torch.testing.assert_close(sums.row_covariance.float(), expected, atol=1e-3, rtol=1e-4)


def test_sums__attention_by_kind_is_counted_as_written() -> None:
    batch = WindowBatch.of([(7, 8, 9, 8, 7, 9), (5, 5, 6, 5)])
    kinds = Kinds.of(batch, 0, torch.device("cpu"))
    rows = range(6)[kinds.rows]
    assert list(rows) == [1]  # every eighth from the second on
    other = Kinds.of(batch, 2, torch.device("cpu"))
    table = dict(zip(KINDS, other.table.transpose(0, 1), strict=True))  # of row 3
    assert range(6)[other.rows] == range(3, 6, STRIDE)
    assert table["first token"][0, 0].tolist() == [1, 0, 0, 0, 0, 0]
    assert table["same token before"][0, 0].tolist() == [0, 1, 0, 0, 0, 0]  # the other 8
    assert table["after the same token"][0, 0].tolist() == [0, 0, 1, 0, 0, 0]  # what followed it
    assert table["1"][0, 0].tolist() == [0, 0, 1, 0, 0, 0]
    assert table["same token before"][1, 0].tolist() == [0, 1, 0, 0, 0, 0]  # the first token is told apart
    assert table["after the same token"][1, 0].tolist() == [0, 1, 1, 0, 0, 0]
    distances = torch.stack([table[kind] for kind in KINDS[3:]]).sum(0)[0, 0]
    assert (distances + table["first token"][0, 0])[:4].tolist() == [1, 1, 1, 1]  # every key before is of one distance


def test_sums__order_and_batches_do_not_matter() -> None:
    ids = windows(6).ids
    together, _ = gathered(wrapped("llama"), WindowBatch.of(ids))
    one, _ = gathered(wrapped("llama"), WindowBatch.of(ids[:2]))
    other, _ = gathered(wrapped("llama"), WindowBatch.of(ids[2:]))
    added = vars(one + other)
    for name, value in vars(together).items():
        torch.testing.assert_close(value, added[name], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SPLIT)
def test_split__parts_add_up_to_the_models_own_logits(name: str) -> None:
    model, atlas = wrapped(name), surveyed(name)
    ids, query = windows(2).ids[1], 30
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def visit(call: AttentionCall) -> None:
        at = torch.tensor([query])
        seen[call.layer] = call.logits(rows=at)[0, :, 0].double(), call.attention(rows=at)[0, :, 0].double()

    model.run(torch.tensor([ids]), None, visit)
    rows = read_rows(model, ids, query, atlas, all_heads(model.heads_per_layer), {})
    assert len(rows) == sum(model.heads_per_layer.values())
    for head, row in rows.items():
        logits, attention = (one[head.index] for one in seen[head.layer])
        visible = logits.isfinite()
        total = torch.stack([*row.terms.values()]).sum(0)
        spread = float(logits[visible].max() - logits[visible].min())
        assert float((total - logits)[visible].abs().max()) < 1e-5 * max(spread, 1.0)
        torch.testing.assert_close(row.attention, attention, atol=1e-5, rtol=0)
        assert float(row.variation["+ match 32"]) < 1e-4, "with every direction of d_head 8 or 16 nothing is missing"
        assert row.variation["first token"] > 1e-3


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_survey__with_every_direction_rows_are_rebuilt(name: str) -> None:
    frame = surveyed(name).to_frame()
    assert frame["variation: + match 16"].max() < 1e-4
    assert frame["variation: + asked position"].min() > 0.01
    assert ((frame[[f"decides: {part}" for part in PARTS]].sum(axis=1) - 1).abs() < 1e-9).all()


def test_survey__killed_and_resumed_is_the_same_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = wrapped("llama"), [WORDS * 40, WORDS[7:] * 40]
    monkeypatch.setattr("qkprism.atlas.survey.TOKENS_AT_ONCE", {"cpu": 2 * LENGTH})
    monkeypatch.setattr(store, "EVERY", 0.0)
    options = {"windows": 10, "length": LENGTH, "progress": False}
    whole = survey(model, texts, **options)
    monkeypatch.setattr(store, "MOST", 0)
    note, calls = store.Unfinished.note, []

    def dies(self: store.Unfinished, *args: Any) -> None:
        note(self, *args)
        calls.append(args)
        if len(calls) in (2, 4, 5):
            raise KeyboardInterrupt

    monkeypatch.setattr(store.Unfinished, "note", dies)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            survey(model, texts, **options, checkpoint=tmp_path / "run")
    resumed = survey(model, texts, **options, checkpoint=tmp_path / "run")
    for layer, means in whole.layers.items():
        assert all(
            torch.equal(value, getattr(resumed.layers[layer], name))
            for name, value in vars(means).items()
            if isinstance(value, Tensor)
        )
    assert resumed.scores == whole.scores
    assert resumed.strongest == whole.strongest
    with pytest.raises(QKPrismError, match="checkpoint of another job"):
        survey(model, texts, **options | {"seed": 1}, checkpoint=tmp_path / "run")


def test_survey__a_model_writes_its_own_text_by_seed() -> None:
    model, state = wrapped("llama"), torch.random.get_rng_state()
    first, same, other = (
        survey(model, windows=4, length=16, seed=seed, progress=False).layers[0].mean_query for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())
    with pytest.raises(QKPrismError, match="does not write text by itself"):
        survey(wrapped("modernbert"), windows=4, length=16, progress=False)


def test_atlas__saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    atlas = surveyed("llama")
    loaded = Atlas.load(atlas.save(tmp_path / "atlas"))
    assert loaded.to_frame().equals(Atlas.load(loaded.save(tmp_path / "again")).to_frame())
    torch.testing.assert_close(loaded.layers[1].mean_key, atlas.layers[1].mean_key, atol=1e-6, rtol=1e-6)
    assert loaded.strongest == atlas.strongest
    page = qk.report(loaded).html
    assert answer_in(page, "table", table="atlas")["n"] == len(atlas.heads)
    assert answer_in(page, "table", table="coverage")["n"] == len(atlas.coverage())


def drawn_texts(seed: int, n: int = 16) -> list[str]:
    """Texts of one window each."""
    draw = torch.Generator().manual_seed(seed)
    words = WORDS.split()
    return [" ".join(words[i] for i in torch.randint(0, len(words), (20,), generator=draw).tolist()) for _ in range(n)]


def test_atlas__two_halves_merged_are_the_survey_of_both_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, halves = wrapped("llama"), [drawn_texts(0), drawn_texts(1)]
    zero = {layer: torch.zeros(info.n_kv_heads, info.d_head) for layer, info in model.layers.items()}
    # one window a batch, and the same rows of each window: every other window is held out, eight of each half
    monkeypatch.setattr("qkprism.atlas.survey.TOKENS_AT_ONCE", {"cpu": 1})
    monkeypatch.setattr("qkprism.atlas.survey._SurveyPass._centres", lambda *_: zero)
    monkeypatch.setattr(
        Windows, "split", lambda self, *_: (self._pick(range(0, len(self), 2)), self._pick(range(1, len(self), 2)))
    )
    first, second, both = (
        survey(model, texts, windows=len(texts), length=LENGTH, progress=False)
        for texts in (*halves, halves[0] + halves[1])
    )
    merged = Atlas.load(first.save(tmp_path / "first")) + Atlas.load(second.save(tmp_path / "second"))
    for layer, means in both.layers.items():
        for name, value in vars(means.sums).items():
            torch.testing.assert_close(vars(merged.layers[layer].sums)[name], value, atol=1e-9, rtol=1e-9)
    for head in both.heads:
        assert [row.attention for row in merged.strongest[head]] == [row.attention for row in both.strongest[head]]
    counts = ("tokens", "windows", "held_out_tokens", "held_out_windows", "held_out_rows")
    assert all(merged.provenance["text"][name] == both.provenance["text"][name] for name in counts)
    assert set(merged.scores) == set(both.scores)
    rows = [one.provenance["text"]["held_out_rows"] for one in (first, second)]
    for name, values in merged.scores.items():
        for head, value in values.items():
            a, b = first.scores[name][head], second.scores[name][head]
            assert value == pytest.approx((a * rows[0] + b * rows[1]) / sum(rows)), (name, head)
            if name.startswith(("variation", "decides")):  # each half was tested with the means of its own
                assert value == pytest.approx(both.scores[name][head], abs=0.03), (name, head)
    swapped = second + first
    assert swapped.scores["variation: + position"] == pytest.approx(merged.scores["variation: + position"])


def test_atlas__what_cannot_be_merged_is_told() -> None:
    atlas = surveyed("llama")
    with pytest.raises(QKPrismError, match="different weights"):
        atlas + surveyed("gpt2")
    with pytest.raises(QKPrismError, match="would count twice"):
        atlas + atlas
    other = survey(wrapped("llama"), [WORDS[3:] * 40, WORDS[9:] * 40], windows=10, length=LENGTH, progress=False)
    with pytest.raises(QKPrismError, match="would count twice"):
        (atlas + other) + atlas
    text = other.provenance["text"] | {"origin": "other.txt"}
    with pytest.raises(QKPrismError, match=r"have read other\.txt: merged"):
        (atlas + replace(other, provenance=other.provenance | {"text": text})) + other
    named = replace(
        other,
        scores=other.scores | {"named: rank": {}, "suffice: + named": {}},
        provenance=other.provenance | {"features": ["a run"]},
    )
    assert set((atlas + named).scores) == set(atlas.scores)


def test_atlas__merged_on_the_command_line(tmp_path: Path) -> None:
    model, places = wrapped("llama"), [tmp_path / name for name in ("one", "two", "both")]
    for place, start in zip(places, (0, 5), strict=False):
        texts = [WORDS[start:] * 40, WORDS[start + 9 :] * 40]
        survey(model, texts, windows=10, length=LENGTH, progress=False).save(place)
    pairs = [word for place in places[:2] for word in ("--merge", str(place))]
    result = CliRunner().invoke(app, ["atlas", *pairs, "--save", str(places[2])])
    assert result.exit_code == 0, result.output
    assert (places[2] / "report.html").is_file()
    first, second, both = map(Atlas.load, places)
    assert (first + second).to_frame().equals(both.to_frame())
    for wrong in (
        pairs,
        [*pairs[:2], "--save", str(tmp_path / "x")],
        [*pairs, "--texts", str(places[0]), "--save", "x"],
    ):
        assert "name two or more, and --save" in str(CliRunner().invoke(app, ["atlas", *wrong]).exception)


def test_atlas__of_another_model_is_refused() -> None:
    with pytest.raises(QKPrismError, match=r"the weights of .* are others"):
        explain(wrapped("gpt2"), WORDS, atlas=surveyed("llama"))


def test_windows__documents_are_on_one_side_of_the_split() -> None:
    found = cut(byte_level(), [WORDS * 5] * 6, LENGTH, 100, "words")
    learned, tested = found.split(0.3, 0)
    assert not set(learned.document) & set(tested.document)
    assert len(learned) + len(tested) == len(found)
    assert len(tested) >= 0.3 * len(found)
    alone = cut(byte_level(), [WORDS * 20], LENGTH, 100, "words").split(0.25, 0)
    assert len(alone[0])
    assert len(alone[1])


def test_windows__special_tokens_stand_in_every_window() -> None:
    found = cut(byte_level(around="<s> $A </s>"), [WORDS * 5], LENGTH, 100, "words")
    tokenizer = byte_level(around="<s> $A </s>")
    assert all(one[0] == tokenizer.bos_token_id and one[-1] == tokenizer.eos_token_id for one in found.ids)
    assert max(map(len, found.ids)) == LENGTH


def test_windows__files_are_read_and_mistakes_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "three"}\n\n"four"\n', encoding="utf-8")
    assert list(documents_of([tmp_path / "a.txt", tmp_path / "b.jsonl", "five"])[0]) == [
        "one two",
        "three",
        "four",
        "five",
    ]
    assert list(documents_of(tmp_path)[0]) == ["one two", "three", "four"]
    (tmp_path / "c.jsonl").write_text(json.dumps({"body": 1}) + "\n", encoding="utf-8")
    with pytest.raises(QKPrismError, match=r'c\.jsonl, line 1: no field "text"'):
        list(documents_of(tmp_path / "c.jsonl")[0])
    with pytest.raises(QKPrismError, match="is not text"):
        documents_of([3])
    with pytest.raises(QKPrismError, match="No text of 16 tokens"):
        survey(wrapped("llama"), ["short"], progress=False)


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("a.jsonl", b'{"text": "caf\xe9"}', "cannot be read as UTF-8"),
        ("a.txt", b"caf\xe9", "cannot be read as UTF-8"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1: not JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}', "half of a surrogate pair"),
        ("a.parquet", b"PAR1", "is not a parquet file"),
        ("dataset_dict.json", b"{}", "holds several datasets. Choose one, such as .*train"),
    ],
)
def test_windows__hostile_files_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: bytes, said: str
) -> None:
    def broken(_: Path) -> None:
        raise ValueError("no magic bytes")

    monkeypatch.setitem(sys.modules, "pyarrow.parquet", SimpleNamespace(ParquetFile=broken))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_from_disk=lambda _: {"train": []}))
    (tmp_path / name).write_bytes(body)
    with pytest.raises(QKPrismError, match=said):
        list(documents_of(tmp_path)[0])


def test_windows__a_mark_of_byte_order_is_no_text(tmp_path: Path) -> None:
    for name, body in (("a.jsonl", '{"text": "one"}'), ("b.txt", "two")):
        (tmp_path / name).write_text(body, encoding="utf-8-sig")
    assert list(documents_of(tmp_path)[0]) == ["one", "two"]


def test_explain__an_atlas_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    model, atlas = explained()
    place = atlas.save(tmp_path / "atlas")
    assert atlas_for(model, place) is atlas_for(model, place)
    replace(atlas, provenance={**atlas.provenance, "model": "again"}).save(place)
    assert atlas_for(model, place).provenance["model"] == "again"


def test_directions__do_not_depend_on_the_basis() -> None:
    draw = torch.Generator().manual_seed(0)
    roots = torch.randn(2, 6, 6, generator=draw, dtype=torch.float64)
    query, key = roots @ roots.mT + 0.1 * torch.eye(6)
    basis = torch.linalg.qr(torch.randn(6, 6, generator=draw, dtype=torch.float64))[0] * torch.linspace(0.2, 6, 6)
    there = basis.inverse()
    plain = MatchDirections.of(query, key, 0.5)
    turned = MatchDirections.of(basis.mT @ query @ basis, there @ key @ there.mT, 0.5)
    torch.testing.assert_close(plain.strength, turned.strength, atol=1e-9, rtol=1e-9)
    for rank in (1, 3, 6):  # q^T M k with q -> A^T q, k -> A^-1 k
        torch.testing.assert_close(basis.inverse() @ plain.form(rank) @ basis, turned.form(rank), atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(plain.form(6), 0.5 * torch.eye(6, dtype=torch.float64), atol=1e-9, rtol=0)


def test_variation__of_rows() -> None:
    rows = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    assert variation_of(rows[0], rows[1]) == 0.5
    assert without_first(rows).tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_decides__the_part_with_most_of_the_lead() -> None:
    parts = torch.zeros(len(PARTS), 1, 2, 1, 4)
    parts[PARTS.index("salience"), 0, 0, 0, 2], parts[PARTS.index("position"), 0, 0, 0] = 3.0, 1.0
    parts[PARTS.index("first token"), 0, 1, 0, 0] = 9.0
    found = decides(parts, parts.sum(0), torch.ones(1, 1, 1))
    assert found.argmax(-1).tolist() == [PARTS.index("salience"), PARTS.index("first token")]


@cache
def explained() -> tuple[Model, Atlas]:
    return wrapped("llama"), surveyed("llama")


def assert_adds_up(said: str, total: float) -> None:
    """Shares that a sentence tells come to what they are shares of, but for rounding."""
    shares = [float(number) for number in re.findall(r" ([+-]\d+\.\d)", said)]
    assert shares
    assert sum(shares) == pytest.approx(round(total, 1))  # as they are printed


def test_explain__shares_add_up_and_the_sentence_says_them() -> None:
    model, atlas = explained()
    found = explain(model, WORDS, atlas=atlas, top=12)
    assert len(found) == min(12, len(found.rows)) == len({edge.head for edge in found})
    attention = [edge.attention for edge in found]
    assert attention == sorted(attention, reverse=True)
    for edge in found:
        row = found.row(edge.head)
        seen = row.logits.isfinite()
        seen[0] = False
        assert edge.height == pytest.approx(float(row.logits[edge.key] - row.logits[seen].mean()))
        assert edge.lead == pytest.approx(float(row.logits[edge.key] - row.logits[edge.rival]))
        assert edge.decides == max(edge.shares, key=lambda part: edge.shares[part] * (1 if edge.height >= 0 else -1))
        side = "above" if edge.height >= 0 else "below"
        _, stands, leads_by = re.split(r"\. (?=It |['\"])", edge.sentence.rstrip("."))
        assert f"stands {abs(edge.height):.1f} logits {side} the mean token: " in stands
        assert f" {edge.shares[edge.decides]:+.1f}" in stands
        assert_adds_up(stands, edge.height)
        assert len(edge.sentence.split()) <= 50
        if abs(edge.lead) >= EVEN:
            assert f"{'leads' if edge.lead > 0 else 'trails'} {found.tokens[edge.rival].strip()!r}" in leads_by
            assert_adds_up(leads_by, edge.lead)
        else:
            assert leads_by.endswith("gets about as much")
        assert f"{edge.attention:.2f}" in edge.sentence
        assert (f"the first token has {edge.resting:.2f})" in edge.sentence) == (edge.resting >= RESTS)
        assert edge.resting == float(row.attention[0])
        assert edge.sentence == sentence_of(edge, found.tokens)
        assert edge == edge_of(row, edge.query, edge.key, found.tokens)
    frame = found.to_frame()
    assert list(frame["head"]) == [str(edge.head) for edge in found]
    leads = frame[[name for name in frame if str(name).startswith("lead: ")]].sum(axis=1)
    assert leads.tolist() == pytest.approx([edge.lead for edge in found])
    assert frame["variation without first"].tolist() == [
        found.row(edge.head).variation_later["+ asked position"] for edge in found
    ]
    assert found.tokens_frame(found.edges[0].head)["attention"].sum() == pytest.approx(1.0)


def test_explain__tokens_are_named_by_text_number_or_mark() -> None:
    model, atlas = explained()
    tokens = explain(model, WORDS, atlas=atlas).tokens
    place = max(i for i, token in enumerate(tokens) if token.endswith("is"))
    by_number = explain(model, WORDS, query=-1, key=place, atlas=atlas)
    by_text = explain(model, WORDS, key=f" {tokens[place]} ", atlas=atlas, head="L1H2")
    assert by_number.query == len(tokens) - 1
    assert by_number.key == by_text.key == place
    assert [str(edge.head) for edge in by_text] == ["L1H2"]
    marked = explain(model, "The hat [+is] in Box O, the jam [?is] in Box", atlas=atlas, top=1)
    assert marked.tokens[marked.query] == marked.tokens[marked.edges[0].key] == tokens[place]
    assert marked.query > marked.edges[0].key == marked.key
    with_number = explain(model, "a 3 b c d e f", key="3", atlas=atlas, top=1)
    assert with_number.tokens[with_number.key].strip("Ġ ") == "3"
    assert explain(model, WORDS, key="3", atlas=atlas, top=1).key == 3
    wrongs = (
        ({"query": 10**6}, "the text has"),
        ({"key": "zebra"}, "is not in the text"),
        ({"query": 0}, "sees no other"),
    )
    second = explain(model, "The hat is", query=1, atlas=atlas)
    assert all(
        edge.decides == max(edge.lead_shares, key=lambda name: edge.lead_shares[name] * (1 if edge.lead >= 0 else -1))
        and "stands" not in edge.sentence
        for edge in second
    )
    for wrong, said in wrongs:
        with pytest.raises(QKPrismError, match=said):
            explain(model, WORDS, atlas=atlas, **wrong)
    with pytest.raises(QKPrismError, match="does not see"):
        explain(model, WORDS, query=3, key=9, atlas=atlas)
    for name in (tokens[place], "is"):  # as a token, and as a word in the text
        before = explain(model, "ab is ab. He is ab", query=".", key=name, atlas=atlas, top=1)
        assert before.key < before.query < len(before.tokens) - 3, "the last key up to the query, not the last of all"
    word = explain(model, "ab zebra is a zebra, ab", key="zebra", atlas=atlas, top=1)
    assert "".join(word.tokens[: word.key + 1]).replace("Ġ", " ") == "ab zebra is a zebra", (
        "of a longer word the last token"
    )
    again = f"{word.tokens[word.key]!r} (token {word.key}, "
    assert f"to {again}" in word.edges[0].sentence, "a token that is there twice has its number"
    with pytest.raises(QKPrismError, match="L9H9 is not in"):
        explain(model, WORDS, head="L9H9", atlas=atlas)


def test_explain__what_comes_from_a_prompt_is_text() -> None:
    model, atlas = explained()
    page = explain(model, "<img src=x onerror=alert(1)></script> is in Box O, the jam", atlas=atlas).to_html()
    body = page[page.index("<body>") :]
    assert "<img" not in body
    assert "</script> is" not in body


def test_stages__each_has_the_parts_before() -> None:
    row = next(iter(explain(*explained()[:1], WORDS, atlas=explained()[1]).rows.values()))
    assert [*row.variation] == [*STAGES]
    assert REST in row.terms


def test_means__of_sums() -> None:
    sums = LayerSums.zeros(2, 1, 3, torch.device("cpu"))
    sums.tokens += 4
    sums.texts += 2
    sums.rows += 1
    sums.attention_rows += 5
    sums.query += 8.0
    sums.query_square += 20.0
    sums.first_key += 6.0
    means = HeadMeans(sums, 0.25)
    assert means.mean_query[0, 0] == 2.0
    assert means.query_covariance[0, 0, 0] == 1.0
    assert means.first_key[0, 0] == 3.0
    assert means.key_head == [0, 0]


def test_explain__a_half_written_atlas_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKPRISM_CACHE", str(tmp_path))
    model, atlas = explained()
    place = atlas.save(cached_atlas(model))
    (place / "manifest.json").unlink()
    monkeypatch.setattr("qkprism.atlas.explain.survey", lambda *_, **__: atlas)
    assert explain(model, WORDS).edges
    assert Atlas.load(place).heads == atlas.heads


def test_explain__the_notebook_view_is_a_frame_that_holds_its_page() -> None:
    model, atlas = explained()
    view = explain(model, WORDS + "<script>alert(1)</script>", atlas=atlas)._repr_html_()
    assert "srcdoc=" in view
    assert 'sandbox="allow-scripts"' in view
    assert "<script" not in view, "the page is quoted within the frame, and no prompt is markup outside it"
