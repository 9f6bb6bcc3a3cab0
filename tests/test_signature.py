"""What queries and keys hold: planted labels are told, others are not; a model's first keys hold their token."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import qkprism.atlas.signature as signatures
from qkprism.atlas.atlas import Atlas
from qkprism.atlas.signature import AT_REST, LABELS, LIKE, Kept, Reservoir, lift, run_windows, signature, told_from
from qkprism.atlas.survey import survey
from qkprism.atlas.windows import Windows
from qkprism.heads import Head
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from qkprism.models.rotation import Rotation
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

VOCABULARY, COUNT, LENGTH = 20, 24, 30


@cache
def model() -> Model:
    tokenizer = byte_level()
    return Model.wrap(tiny("llama", vocab_size=len(tokenizer)), tokenizer)


@cache
def windows(documents: int = 8) -> Windows:
    """Tokens drawn one by one, so that neighbours tell nothing of each other; the last window is a short one."""
    ids = torch.randint(5, 5 + VOCABULARY, (COUNT, LENGTH), generator=torch.Generator().manual_seed(1)).tolist()
    ids[-1] = ids[-1][:17]
    return Windows(tuple(map(tuple, ids)), tuple(i * documents // COUNT for i in range(COUNT)), "drawn tokens")


@cache
def atlas() -> Atlas:
    text = "the cat sat on the mat and the dog lay by the door, " * 40
    return survey(model(), [text, text[7:]], windows=10, length=48, progress=False)


def shifted(call: AttentionCall, start: int, by: int) -> Tensor:
    """The tokens of a batch, so many places later."""
    ids = torch.zeros(call.key.shape[0], call.key.shape[2]).long()
    for row, window in enumerate(windows().ids[start : start + len(ids)]):
        ids[row, by : len(window)] = torch.tensor(window)[: max(len(window) - by, 0)]
    return ids


def drawn(n: int = 4000, classes: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Classes, halves, and noise of variance 1 in two heads of three directions."""
    random = torch.Generator().manual_seed(0)
    return (
        torch.randint(classes, (n,), generator=random),
        torch.randint(2, (n,), generator=random),
        torch.randn(2, n, 3, generator=random),
    )


def test_told_from__gives_the_share_of_variance_that_classes_have() -> None:
    classes, half, noise = drawn()
    means = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(1)) * torch.tensor([2.0, 0.5])[:, None, None]
    told = told_from(means[:, classes] + noise, classes, half)
    variance = means[:, classes].var(1).mean(1)
    torch.testing.assert_close(told, variance / (variance + 1), atol=0.03, rtol=0)


def test_told_from__classes_that_say_nothing_explain_nothing() -> None:
    classes, half, noise = drawn(classes=1500)  # few tokens a class: plain class means would give -0.5
    told = told_from(noise, classes, half)
    assert told.abs().max() < 0.02


def test_told_from__classes_that_say_all_explain_all() -> None:
    classes, half, noise = drawn()
    torch.testing.assert_close(told_from(noise[:, classes], classes, half), torch.ones(2), atol=1e-5, rtol=0)


def test_lift__is_the_match_of_a_class_above_the_mean_key_in_any_coordinates() -> None:
    classes, half, noise = drawn()
    random = torch.Generator().manual_seed(3)
    asked, held = torch.randn(2, 2, 40, 3, generator=random)
    mean = held - held[:, classes].mean(1, keepdim=True)  # above the mean key
    found = lift(asked[:, classes] + noise, held[:, classes] + noise.flip(1), classes, classes, half)
    expected = (asked * mean).sum(2)[:, classes].mean(1)
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.05)
    change = torch.randn(2, 3, 3, generator=random)
    again = lift(
        (asked[:, classes] + noise) @ change,
        (held[:, classes] + noise.flip(1)) @ change.inverse().mT,
        classes,
        classes,
        half,
    )
    torch.testing.assert_close(again, found, atol=1e-3, rtol=1e-3)


def test_lift__of_classes_that_say_nothing_is_none() -> None:
    classes, half, noise = drawn(classes=1500)
    assert lift(noise, noise, classes, classes, half).abs().max() < 0.15  # one text's own noise would give 3


def test_kept__labels_are_the_token_and_the_one_before() -> None:
    kept = Kept.of(windows(), most=200)
    assert 150 < len(kept.half) <= 200
    rows = kept.places.nonzero().tolist()
    assert all(1 < token < len(windows().ids[window]) for window, token in rows)
    expected = [[windows().ids[window][token - shift] for window, token in rows] for shift in (0, 1)]
    assert kept.labels[:2].tolist() == expected


def test_kept__a_document_is_in_one_half() -> None:
    kept = Kept.of(windows())
    document = torch.tensor(windows().document)[kept.places.nonzero()[:, 0]]
    sides = set(zip(document.tolist(), kept.half.tolist(), strict=True))
    assert len(sides) == 8
    assert {half for _, half in sides} == {0, 1}
    assert set(Kept.of(windows(documents=1)).half.tolist()) == {0, 1}


def test_signature__keys_of_the_first_layer_hold_their_token_and_nothing_else() -> None:
    found = signature(model(), windows(), atlas().layers)
    first = [head for head in atlas().heads if head.layer == 0]
    for side in ("queries", "keys"):
        own, before, position = ([found[f"signature: {side} hold {label}"][head] for head in first] for label in LABELS)
        assert min(own) > 0.99
        assert max(map(abs, before + position)) < 0.1


@pytest.mark.parametrize(
    ("asks", "shift", "low", "high"), [(True, 1, LIKE, 99), (True, 0, -99, -LIKE), (False, 1, -0.3, 0.3)]
)
def test_signature__keys_of_the_token_before_are_induction_like_if_queries_ask_for_them(
    asks: bool, shift: int, low: float, high: float
) -> None:
    vectors = torch.randn(5 + VOCABULARY, 8, generator=torch.Generator().manual_seed(2))
    reservoir = Reservoir.of(windows(), atlas().layers)

    def visit(call: AttentionCall, rotation: Rotation | None, start: int) -> None:
        query, key = (
            vectors[shifted(call, start, by)][:, None].expand_as(one)
            for one, by in ((call.query, 0 if asks else LENGTH), (call.key, shift))
        )
        turned = {
            name: one if rotation is None else rotation.turn(one) for name, one in (("query", query), ("key", key))
        }
        reservoir.add(replace(call, **turned), rotation, start)

    run_windows(model(), windows(), visit)
    scores = reservoir.scores()["signature: induction-like"]
    assert set(scores) == set(atlas().heads)
    assert all(low < score < high for score in scores.values())


def test_signature__a_head_at_rest_is_not_judged() -> None:
    layers = dict(atlas().layers)
    sums = layers[1].sums
    attention = sums.attention.clone()
    first = torch.tensor([AT_REST - 0.01, *[AT_REST + 0.01] * (len(attention) - 1)])
    attention[:, 0] = first * sums.attention_rows
    layers[1] = replace(layers[1], sums=replace(sums, attention=attention))
    found = signature(model(), windows(), layers)
    judged = {head for head, score in found["signature: induction-like"].items() if score == score}
    assert judged == {head for head in atlas().heads if head.layer != 1 or head.index == 0}
    assert all(score == score for score in found["signature: keys hold the token before"].values())


def test_signature__does_not_depend_on_how_windows_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    found = signature(model(), windows(), atlas().layers)["signature: keys hold the token"]
    monkeypatch.setattr(signatures, "AT_ONCE", 7)
    again = signature(model(), windows(), atlas().layers)["signature: keys hold the token"]
    assert again == pytest.approx(found, abs=2e-3)
    assert found[Head(1, 0)] < 0.99  # the second layer sees more than its token
