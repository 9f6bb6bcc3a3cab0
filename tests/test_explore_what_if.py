"""What if: the edits of the explorer are those of `intervene`, and a part that is taken away is gone, no more."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import qkprism as qk
from qkprism.contrasts import Contrast, Example
from qkprism.explorer.desk import Desk
from qkprism.explorer.opening import opened
from qkprism.explorer.what_if import Wish
from qkprism.heads import Head
from test_atlas import WORDS, explained
from test_pipeline import contrast
from tiny import one_thread  # noqa: F401

HEAD = Head(1, 2)
PART = {"run": None, "features": [], "together": False}
ALL = {"part": None, "run": "boxes", "features": ["boxes"], "together": False}


@cache
def desk() -> Desk:
    model, atlas = explained()
    features = qk.decompose(model, contrast(40), recipe=qk.Recipe(rank=3), progress=False)
    return Desk.ready(model, atlas, {"boxes": opened("boxes", features)})


def asked(wish: Wish, **options: Any) -> dict[str, Any]:
    return desk().what_if(WORDS, wish, **options)


def pair(kind: Any = "swap", amount: float = 1.0, query: int = 32) -> Wish:
    return Wish(HEAD, query, attended(query), 9, kind, amount)


def attended(query: int) -> int:
    """The token after the ninth that the head attends to most: an edit of any other moves next to nothing."""
    return 10 + int(desk()._explanation(WORDS, query).row(HEAD).attention[10:27].argmax())


def test_what_if__is_what_intervene_measures_on_one_text() -> None:
    model, features = desk().model, desk().library.features("boxes")
    example = contrast(41, seed=3)[0]
    encoded = qk.verbs.inputs.encode_like(model, [example], features, [HEAD])[0].text  # type: ignore[attr-defined]
    original, target = encoded.positive[0], encoded.negative[0]
    wish = Wish(HEAD, encoded.query, original, target)
    found = desk().what_if(example.text.text, wish, **ALL)
    effects = qk.intervene(
        model,
        _alone(example),
        features,
        heads=HEAD,
        compare=qk.Comparison(methods=["raw oblique"], draws=1),
        progress=False,
    )
    for control, key in (("none", "before"), ("feature", "after"), ("full", "full")):
        named = {"feature": "boxes"} if control == "feature" else {}
        for measure, place in (("attention_original", original), ("attention_target", target)):
            expected = effects.value(measure, head=HEAD, control=control, **named)[0]  # type: ignore[arg-type]
            assert found["attention"][key][place] == pytest.approx(expected, abs=1e-4), (control, measure)
    before, full = found["attention"]["before"], found["attention"]["full"]
    assert full[original] == pytest.approx(before[target], abs=1e-4)  # keys as wholes exchange what they get


def _alone(example: Example) -> Contrast:
    """The text with one key of each side marked."""
    text = example.text
    negative = text.negative[0]
    alone = type(text)(text.text, query=text.query, positive=text.positive, negative=(negative,))
    return Contrast("one", [Example(alone)])


@pytest.mark.parametrize("options", [{**PART, "part": "match"}, ALL], ids=["part", "features"])
def test_what_if__a_steer_by_nothing_changes_nothing_and_by_one_is_the_swap_of_the_first_key(options: Any) -> None:
    nothing = asked(pair("steer", 0.0), **options)
    assert nothing["attention"]["after"] == nothing["attention"]["before"]
    assert nothing["moved"]["after"] == pytest.approx(0, abs=1e-6)
    swap, steer = (asked(pair(kind), **options)["attention"]["after"] for kind in ("swap", "steer"))
    first = attended(32)
    others = [place for place in range(5, 30) if place not in (9, first)]
    assert steer != nothing["attention"]["after"]
    of_others = [row[first] / sum(row[place] for place in others) for row in (swap, steer)]
    assert of_others[0] == pytest.approx(of_others[1], rel=0.02)


@pytest.mark.parametrize("query", [32, 28])
def test_what_if__a_part_that_is_taken_away_is_as_in_the_mean_token(query: int) -> None:
    found = asked(pair("ablate", query=query), part="salience", **PART)
    row = desk()._explanation(WORDS, query).row(HEAD)
    logits = row.logits.clone()
    salience = row.terms["salience"]
    logits[attended(query)] -= salience[attended(query)] - salience[1 : query + 1].mean()
    assert found["attention"]["after"] == pytest.approx(logits.softmax(0).tolist(), abs=2e-4)
    assert found["draws"] == len(found["moved"]["permuted"]) == 8
    low, high = (found["attention"][name] for name in ("low", "high"))
    assert all(a <= b for a, b in zip(low, high, strict=True))


def test_what_if__a_key_that_is_taken_away_is_the_mean_key() -> None:
    found = asked(pair("ablate"), **ALL)
    logits = desk()._explanation(WORDS, 32).row(HEAD).logits.clone()
    logits[attended(32)] = logits[1:33].mean()
    assert found["attention"]["full"] == pytest.approx(logits.softmax(0).tolist(), abs=1e-3)
    assert found["attention"]["full"] != pytest.approx(found["attention"]["before"], abs=1e-2)


def test_what_if__reaches_the_prediction_from_the_query_on() -> None:
    moved = asked(pair("steer", 10.0), **ALL)["moved"]
    assert 0 < moved["after"] < 1
    assert 0 < moved["full"] < 1
    assert asked(pair("steer", 0.0), **ALL)["moved"]["full"] == 0


def test_what_if__mistakes_are_sentences() -> None:
    for wish, options, said in (
        (pair(), {**PART, "part": "nothing"}, "is not a part"),
        (pair(), {**ALL, "run": "none"}, "There are: boxes"),
        (pair(), {**ALL, "features": ["drum"]}, "Choose features"),
        (Wish(HEAD, 15, 9, 20), {**PART, "part": "match"}, "does not see token 20"),
        (Wish(Head(9, 9), 32, 9, 20), ALL, "is not in"),
        (Wish(HEAD, 32, 9, 10**6), ALL, "no token 1000000"),
        (Wish(HEAD, 32, 9, 20, "conditional"), ALL, "needs twins"),
        (Wish(HEAD, 32, 9, 20, "conditional"), {**PART, "part": "match"}, "no conditional exchange"),
    ):
        with pytest.raises(qk.QKPrismError, match=said):
            asked(wish, **options)
    for options in ({"target": 9}, {"kind": "<b>"}, {"amount": float("nan")}, {"amount": 99}):
        with pytest.raises(qk.QKPrismError):
            Wish(**({"head": HEAD, "query": 32, "original": 9, "target": 20} | options))
