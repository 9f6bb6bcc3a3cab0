"""What is wrong with texts that come in: repeats are one group, and what misleads is said in the result."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import qkprism as qk
from qkprism import Contrast, Encoding, Example, QKPrismError
from qkprism.capture.texts import Census, Texts
from qkprism.core.groups import connected
from qkprism.core.means import Means, Pool
from qkprism.models.encoding import encode
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level, word_piece

WORDS = ("hat", "jam", "pen", "cup", "key", "map", "ring", "coin", "book", "lamp", "drum", "sock")
OTHERS = ("he", "it", "now", "not", "same", "any", "other")
PLAIN = "in the [-hat] or [+jam] it is"


@pytest.fixture(scope="module")
def model():
    tokenizer = byte_level(words=WORDS + OTHERS)
    sizes = {"hidden_size": 64, "num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 6}
    return qk.load((tiny("llama", vocab_size=len(tokenizer), **sizes), tokenizer))


def null_texts(n=60, seed=0):
    """Different texts of words in random places, of which a random one is the positive key."""
    rng = np.random.default_rng(seed)
    found = {}
    while len(found) < n:
        things, asked = rng.permutation(WORDS)[:9], rng.integers(1, 4)
        marks = [f"[{'+' if j == asked else '-'}{thing}]" if 0 < j < 4 else thing for j, thing in enumerate(things)]
        found[" ".join(things)] = " ".join(marks)
    return list(found.values())


def looked_at(model, examples, **options):
    return Texts.of(encode(model.tokenizer, examples, Encoding(**options)), examples)


def parsed(*texts, **options):
    return [Example.parse(text, source=f"line {i}", **options) for i, text in enumerate(texts, start=1)]


# Repeats


def test_connected__is_the_same_in_any_order_up_to_names():
    rng = np.random.default_rng(0)
    marks = [rng.integers(0, 40, rng.integers(0, 3)).tolist() for _ in range(60)]
    found, order = connected(marks), rng.permutation(60)
    other = connected([marks[i] for i in order])
    for a in range(60):
        assert found[a] <= a
        for b in range(60):
            assert (found[order[a]] == found[order[b]]) == (other[a] == other[b])
            if set(marks[a]) & set(marks[b]):
                assert found[a] == found[b]


def test_decompose__copies_of_null_texts_have_no_rank(model):
    once = qk.decompose(model, Contrast.from_texts("null", null_texts()), progress=False)
    with pytest.warns(UserWarning, match=r"240 of 300 examples of 'null' repeat the text of another\..*60 groups"):
        copied = qk.decompose(model, Contrast.from_texts("null", null_texts() * 5), progress=False)
    assert len(once) == len(copied) == 96
    assert sum(feature.rank_heldout > 0 for feature in once.values()) <= 2
    assert sum(feature.rank_heldout > 0 for feature in copied.values()) <= 2
    for key, feature in copied.items():
        assert any("240 of 300 examples" in note for note in feature.notes)
        for name in ("t", "null_mean", "shuffled_mean"):  # folds, signs and shuffles are those of one copy
            ours, expected = (getattr(own.spectrum, name) for own in (feature, once[key]))
            assert torch.allclose(ours, expected, rtol=1e-2, atol=1e-2)
    assert any("240 of 300" in note for note in copied.provenance["contrasts"]["null"]["notes"])
    assert copied.with_rank("energy").notes == copied.with_center("none").notes == copied.notes
    assert not any("repeat" in note for note in once.notes)


def test_decompose__says_that_repeats_left_too_few_groups(model):
    few = Contrast.from_texts("few", null_texts(7) * 5)
    with pytest.warns(UserWarning, match="there are 7 groups"):
        features = qk.decompose(model, few, heads="L0H0", progress=False)
    assert features["L0H0"].rank_heldout is None
    assert any(
        "test of 'few' was not made: it needs 8 groups of examples, and there are 7" in n for n in features.notes
    )
    with pytest.raises(QKPrismError, match="rank of 'few' needs 8 groups of examples or more, and there are 7"):
        qk.decompose(model, few, heads="L0H0", recipe=qk.Recipe(rank="heldout"), progress=False)


def test_texts__the_same_text_is_one_group_however_it_is_marked(model):
    other = "in the [+hat] or [-jam] it is", "in the [-hat] or [+jam] [?it] is", "in the [-hat] or [+pen] it is"
    assert looked_at(model, parsed(PLAIN, *other)).grouping.group == (0, 0, 0, 3)


def test_texts__repeats_join_the_groups_that_were_given(model):
    texts = (PLAIN, "in the [-pen] or [+jam] it is", PLAIN, "in the [-cup] or [+jam] it is")
    examples = [Example.parse(text, group=group) for text, group in zip(texts, "aabb", strict=True)]
    assert looked_at(model, examples).grouping.group == (0, 0, 0, 0)
    assert looked_at(model, examples).grouping.repeated == 1
    together = [Example.parse(text, group=group) for text, group in zip(texts, "abac", strict=True)]
    assert looked_at(model, together).grouping.group == (0, 1, 0, 3)
    assert looked_at(model, together).grouping.repeated == 0  # the user knew


def test_texts__a_twin_that_is_the_text_of_another_joins_them(model):
    texts = [f"the [+{word}] it is" for word in WORDS]
    chain = [Example.parse(a, twin=b) for a, b in pairwise(texts[:5])]
    assert looked_at(model, chain).grouping.group == (0, 0, 0, 0)
    pairs = [Example.parse(a, twin=b) for a, b in zip(texts[:4:2], texts[1:4:2], strict=True)]
    assert looked_at(model, pairs).grouping.group == (0, 1)


def test_texts__texts_of_the_same_tokens_are_the_same():
    examples = parsed(PLAIN, PLAIN.replace("in the", "In THE"))
    assert Texts.of(encode(word_piece(), examples), examples).grouping.group == (0, 0)
    assert Texts.of(encode(byte_level(), examples), examples).grouping.group == (0, 1)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("in the [-hat] or [+jam] he is", True),  # one token
        ("in the [-hat] or [+jam] it is now", True),
        ("in [-hat] or [+jam] it is", True),
        ("In  the [-hat], or [+jam]: it is", True),  # case, spaces, punctuation
        ("in the [-coin] or [+lamp] it is", True),  # marked words
        ("in the [-" + "x" * 5 + "] or [+lamp] it is", True),
        ("on a [-hat] or [+jam] it is", False),
        ("in the [-coin] or [+lamp] he is", False),
        ("it is the [-jam] or [+hat] in", False),
        ("in the [-" + "x" * 30 + "] or [+lamp] it is", False),  # most of it is marked
    ],
)
def test_texts__points_out_what_is_nearly_the_same(model, text, near):
    examples = parsed("not the [-same] as [+any] other", PLAIN, text)
    found = looked_at(model, examples)
    assert (found.near, found.pair) == ((2, ("line 2", "line 3")) if near else (0, ("line 1", "line 1")))
    assert found.grouping.group == (0, 1, 2)
    notes = [note.text for note in found.notes("mine", "last") if "`group`" in note.text]
    assert [note.startswith("2 of 3 different texts of 'mine'") for note in notes] == [True] * near
    grouped = [Example.parse(text, group="a") for text in (PLAIN, text)]
    assert looked_at(model, grouped).near == 0


def test_census__texts_that_a_template_has_drawn_may_be_nearly_the_same(model):
    examples = parsed("not the [-same] as [+any] other", PLAIN, "in the [-hat] or [+jam] he is")
    encoded = list(encode(model.tokenizer, examples, Encoding()))
    assert [Census.of(encoded, examples, drawn=drawn).texts.near for drawn in (False, True)] == [2, 0]
    drawn = qk.task("boxes", n_train=4, n_search=4, n_test=4)
    assert all(one.drawn for one in (drawn.contrast[:2], drawn.test + drawn.search, *drawn.contrasts.values()))
    assert not (drawn.test + Contrast("mine", parsed(PLAIN))).drawn


def test_texts__without_a_word_in_common_nothing_is_near(model):
    assert looked_at(model, parsed("[-+] [+*]!", "[-=] [+/]? ,, ::")).near == 0
    assert looked_at(model, [Example.parse(text) for text in null_texts(200, seed=1)]).near == 0


def test_texts__many_examples_are_looked_at_in_bounded_memory(model, monkeypatch):
    examples = parsed(*null_texts(40), null_texts(1)[0] + " hat")
    assert looked_at(model, examples).near == 2
    monkeypatch.setattr("qkprism.capture.texts.MOST_SIGNATURES", 300)
    assert looked_at(model, examples).near == 0


# Errors of means


def test_pool__copies_change_neither_means_nor_errors():
    g = torch.Generator().manual_seed(0)
    values, weight, copies = torch.randn(30, 2, generator=g), torch.rand(30, generator=g) + 0.5, 5
    once, often = Means.zeros(2), Means.zeros(2)
    once.add(values, weight)
    group = torch.arange(30).repeat(copies)[torch.randperm(30 * copies, generator=g)]
    pool = Pool.of(group.tolist())
    for some in group.split(7):
        often.add(*pool.add(values[some], weight[some], some.tolist()))
    assert torch.allclose(once.mean(), often.mean())
    assert torch.allclose(once.error(), often.error())
    assert not pool.waiting


def test_find_heads__copies_do_not_make_errors_smaller(model):
    texts = Contrast.from_texts("null", null_texts(20))
    once = qk.find_heads(model, texts, heads=["L0H0", "L3H2"], progress=False)
    with pytest.warns(UserWarning, match="80 of 100 examples of 'null' repeat"):
        often = qk.find_heads(model, texts + texts + texts + texts + texts, heads=once, progress=False)
    assert often.heads == once.heads
    for name in once.values:
        assert torch.allclose(once.values[name], often.values[name], atol=1e-6)
        assert torch.allclose(once.errors[name], often.errors[name], atol=1e-6)
    assert "80 of 100" in often.provenance["notes"][0]


# Marks


def test_verbs__warn_of_a_mark_on_the_first_token(model):
    texts = [text.replace(" ", "] ", 1) for text in null_texts(40)]
    first = Contrast.from_texts("first", [f"[-{text}" for text in texts])
    behind = Contrast.from_texts("behind", [f"in [-{text}" for text in texts])
    says = "40 of 40 examples of 'first' have a key or the query on the first token.*in front"
    options = {"heads": "L0H0", "encoding": qk.Encoding(token="first"), "progress": False}
    with pytest.warns(UserWarning, match=says):
        features = qk.decompose(model, first, **options)
    assert sum("on the first token" in note for note in features.notes) == 1
    with pytest.warns(UserWarning, match=says):
        scores = qk.find_heads(model, first, **options)
    assert "on the first token" in scores.provenance["notes"][0]
    assert not any("first token" in note for note in qk.decompose(model, behind, **options).notes)
    one = Contrast("one", (first[0], *behind[1:]))  # a note, but not worth a warning
    assert any("1 of 40" in note for note in qk.decompose(model, one, **options).notes)


def test_notes__say_which_marked_words_are_several_tokens(model):
    odd = [text.replace("jam", "marmalade") for text in null_texts(20)]
    features = qk.decompose(model, Contrast.from_texts("odd", odd), heads="L0H0", progress=False)
    count = sum("+marmalade]" in text or "-marmalade]" in text for text in odd)
    says = f"{count} of 60 marked words of 'odd' are several tokens, such as 'marmalade': the last one stands for"
    assert any(says in note for note in features.notes)
    whole = Contrast.from_texts("whole", null_texts(20))
    assert not any("several tokens" in n for n in qk.decompose(model, whole, heads="L0H0", progress=False).notes)
    every = qk.decompose(
        model, Contrast.from_texts("odd", odd), heads="L0H0", encoding=qk.Encoding(token="every"), progress=False
    )
    assert not any("several tokens" in note for note in every.notes)


# Readings


def test_decompose__a_reading_that_cannot_be_had_is_not_silent(model):
    plain = Contrast.from_texts("plain one", null_texts(20))
    twins = [Example.parse(text, twin=text.replace("[+", "[+x")) for text in null_texts(20, seed=1)]
    sets = {"alone": plain, "pairs": Contrast("twins", tuple(twins))}
    options = {"heads": "L0H0", "progress": False}
    with pytest.raises(QKPrismError, match=r"reading='paired' is of twins, and the examples of 'alone' have none\."):
        qk.decompose(model, {"alone": plain}, recipe=qk.Recipe(reading="paired", metric="raw"), **options)
    with pytest.raises(QKPrismError, match=r"reading='plain' is of texts without twins, and 'pairs' has twins\."):
        qk.decompose(model, sets, recipe=qk.Recipe(reading="plain", metric="raw"), **options)
    both = qk.decompose(model, sets, recipe=qk.Recipe(reading="paired", metric="raw"), **options)
    assert "'alone' has no twins: reading='paired' has no effect on it." in both["alone", "L0H0"].notes
    assert not any("no effect" in note for note in both["pairs", "L0H0"].notes)
    usual = qk.decompose(model, sets, recipe="paper", **options)  # nobody asked for it by name
    assert not any("no effect" in note for note in usual.notes)
