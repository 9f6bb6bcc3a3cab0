"""Whatever is measured on texts that the features were found on says so."""

from dataclasses import dataclass

import pytest

import qkprism as qk
from qkprism import Contrast, Features
from qkprism.capture import model_source
from qkprism.verbs.inputs import noted, texts_in
from test_intervene import contrasts, examples, load
from test_validate import pairs
from tiny import one_thread  # noqa: F401

FLATTERS = "among those that the features were found on"
TRAINED, OTHERS = contrasts(20), examples(6, seed=77)


@pytest.fixture(scope="module")
def model():
    return load("llama")


@pytest.fixture(scope="module")
def features(model):
    return qk.decompose(model, TRAINED, heads=["L1H0"], recipe=qk.Recipe(rank=1), progress=False)


def notes_on_texts(result):
    return [note for note in result.notes if FLATTERS in note]


@pytest.mark.parametrize("outcome", ["attention", "logits"])
def test_intervene__says_how_many_texts_the_features_were_found_on(model, features, outcome):
    options = {"outcome": outcome, "compare": qk.Comparison(draws=1, methods=["raw"]), "progress": False}
    mixed = [*TRAINED["first"].examples[:2], *OTHERS]
    (note,) = notes_on_texts(qk.intervene(model, iter(mixed), features, **options))
    assert note.startswith("2 of 8 texts are among those")
    assert not notes_on_texts(qk.intervene(model, OTHERS, features, **options))


@pytest.mark.filterwarnings("ignore:16 of 20 examples")
def test_verbs__all_say_it(model, features):
    sets = qk.intervene(model, TRAINED["boxes"], {"ours": features}, compare=qk.Comparison(draws=1), progress=False)
    assert notes_on_texts(sets["ours"])[0].startswith("20 of 20 texts")
    assert notes_on_texts(qk.attribute(model, iter(TRAINED["boxes"].examples), features, progress=False))
    assert not notes_on_texts(qk.attribute(model, OTHERS, features, progress=False))
    changed = pairs(4)
    bases = tuple(base for base, _ in changed["boxes"])
    known = qk.decompose(
        model,
        {**TRAINED, "first": Contrast("first", bases * 5)},
        heads=["L1H0"],
        recipe=qk.Recipe(rank=1),
        progress=False,
    )
    for sets in (known, {"ours": features, "known": known}):
        (note,) = notes_on_texts(qk.validate(model, changed, sets, progress=False))
        assert note.startswith("8 of 16 texts")  # two factors start from the same four
    assert not notes_on_texts(qk.validate(model, changed, features, progress=False))


def test_noted__twins_count_and_files_remember(model, tmp_path):
    twins = Contrast("twins", tuple(type(a)(a.text, b.text) for a, b in pairs(12)["boxes"]))
    features = qk.decompose(model, twins, heads=["L1H0"], recipe=qk.Recipe(rank=1), progress=False)
    again = Features.load(features.save(tmp_path / "run"))
    effects = qk.intervene(
        model, [example for _, example in pairs(12)["boxes"]], again, compare=qk.Comparison(draws=1), progress=False
    )
    assert notes_on_texts(effects)[0].startswith("12 of 12 texts")
    assert "texts" in again.provenance["contrasts"]["twins"]
    assert "texts" not in effects.provenance["features"]["contrasts"]["twins"]  # once is enough
    assert effects.provenance["features"]["contrasts"]["twins"]["digest"] == twins.digest


@dataclass(frozen=True)
class Result:
    notes: tuple[str, ...] = ()


def test_noted__very_many_texts_are_not_remembered(model, monkeypatch):
    monkeypatch.setattr(model_source, "REMEMBERED", 19)
    features = qk.decompose(model, TRAINED["boxes"], heads=["L1H0"], recipe=qk.Recipe(rank=1), progress=False)
    assert noted(Result(), features, TRAINED["boxes"]) == Result()


def test_texts_in__takes_examples_however_they_are_given():
    first, second, third = OTHERS[:3]
    texts = [example.text.text for example in (first, second, third)]
    assert list(texts_in(first)) == texts[:1]
    assert list(texts_in(Contrast("c", (first, second)))) == texts[:2]
    assert list(texts_in({"a": [(first, second)], "b": Contrast("c", (third,))})) == texts
