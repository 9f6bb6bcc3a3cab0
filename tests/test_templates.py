"""Templates: what a file says is what is drawn; twins and exchanges change one thing; mistakes have a line."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

import qkprism as qk
from qkprism.contrasts import Contrast, Example
from qkprism.contrasts.balance import balance
from qkprism.contrasts.checks import check
from qkprism.contrasts.drawing import Writer, joined, rolls
from qkprism.contrasts.sources import is_template, resolve
from qkprism.contrasts.templates import parse_template, read_template
from qkprism.contrasts.values import Mark
from qkprism.errors import QKPrismError
from tokenizers_for_tests import byte_level

BOXES = """\
name = "mine"
question = "Which box?"
places = 4
exchange = ["thing", "box", "order"]
twins = ["thing", "box", "order"]
prompt = '''
{% for i in range(places) %}
{{ "The" if loop.first else ", the" }} {{ thing[i] }} is in box {{ key(i, box[i], order=i, thing=thing[i]) }}
{%- endfor %}. The {{ goal }} is in box'''

[words]
things = "objects"
boxes = "letters"

[draw]
thing = "sample(things, places)"
box = "sample(boxes, places)"
goal = "thing[asked]"
"""


@pytest.fixture
def file(tmp_path):
    def written(text=BOXES, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def made(text=BOXES, **sizes):
    template, mistakes = parse_template(text, file="mine.toml")
    assert not mistakes, mistakes
    return qk.task(template, **({"n_train": 40, "n_search": 12, "n_test": 24} | sizes))


def words(span, text):
    return text.text[span.start : span.end]


def rows(text):
    """Thing and box of each clause, and what is asked for."""
    clauses, asked = text.text.split(". ")
    pairs = [clause.strip().split(" is in box ") for clause in clauses.split(",")]
    return [(thing.split()[1], box) for thing, box in pairs], asked.split()[1]


# Tasks


def test_task__has_contrasts_search_and_test_of_other_words():
    task = made()
    assert (len(task.contrast), len(task.search), len(task.test)) == (40, 12, 24)
    assert list(task.contrasts) == ["thing", "box", "order"]
    for name in ("things", "boxes"):
        assert not set(task.words[name]) & set(task.held_out[name])
        assert set(task.words[name]) | set(task.held_out[name]) == set(task.template.lists[name])
    for part, own in ((task.contrast, task.words), (task.search, task.words), (task.test, task.held_out)):
        for example in part:
            pairs, asked = rows(example.text)
            assert {thing for thing, _ in pairs} <= set(own["things"])
            assert {box for _, box in pairs} <= set(own["boxes"])
            assert dict(pairs)[asked] == words(example.text.positive[0], example.text)


def test_task__is_the_same_for_the_same_seed_and_another_for_another():
    first, again, other = made(), made(), made(seed=1)
    assert first.contrast.digest == again.contrast.digest
    assert first.test.digest == again.test.digest
    assert first.contrast.digest != other.contrast.digest
    assert first.held_out != other.held_out


def test_task__the_size_of_one_part_changes_no_other():
    few, many = made(), made(n_train=80, n_search=30)
    assert few.test.digest == many.test.digest
    assert few.search[0] == many.search[0]


def test_task__every_place_is_asked_for_and_targeted_equally_often():
    task = made(n_train=48)
    asked = Counter(example.text.positive[0].labels["order"] for example in task.contrast)
    aimed = Counter(s.labels["order"] for e in task.contrast for s in e.text.negative if s.target)
    assert set(asked.values()) == {12}
    assert set(aimed.values()) == {12}


def test_task__plain_contrast_without_twins():
    task = made(BOXES.replace('twins = ["thing", "box", "order"]\n', ""))
    assert list(task.contrasts) == ["mine"]
    assert task.contrasts["mine"] is task.contrast


ROWS = BOXES.replace('"sample(things, places)"', '"row(things)"').replace('"sample(boxes, places)"', '"row(boxes)"')


def spread(values):
    """How much more often the most common value comes than the rarest."""
    counts = Counter(values).values()
    return max(counts) - min(counts)


@pytest.mark.parametrize("n", [24, 61, 150])
def test_row__every_word_is_asked_for_equally_often_on_either_side(n):
    task = made(ROWS, n_train=n)
    for variable, column in (("thing", 0), ("box", 1)):
        for side in (0, 1):
            texts = [example.texts[side] for example in task.contrasts[variable]]
            asked = [rows(text)[0][text.positive[0].labels["order"]][column] for text in texts]
            assert spread(asked) <= 1
            assert len(set(asked)) > 15 or n < 60
    for variable in ("thing", "box"):
        for example in task.contrasts[variable]:
            assert len({word for pair in rows(example.twin)[0] for word in pair}) == 8
            assert not set(rows(example.twin)[0]) <= set(rows(example.text)[0])


def test_row__of_as_many_words_as_places_has_no_twin():
    few = ROWS.replace('"letters"', '["A", "B", "C", "D"]')
    shared = few.replace("places = 4", 'places = 4\nshared = ["boxes"]')
    with pytest.raises(QKPrismError, match=r"mine.toml:17: a row of 4 is more than the 3 there are; .*share it"):
        made(few)
    with pytest.raises(QKPrismError, match=r"twins: 'box' has '[A-D]', and no list has another word"):
        made(shared)
    task = made(shared.replace('twins = ["thing", "box", "order"]', 'twins = "thing"'))
    assert task.words["boxes"] == task.held_out["boxes"] == ("A", "B", "C", "D")
    assert spread(words(example.text.positive[0], example.text) for example in task.contrast) == 0


def test_turn__each_comes_equally_often_and_another_in_the_twin():
    source = """
question = "?"
twins = "kind"
prompt = "a {{ kind }} {{ other }} {{ pos(kind) }} {{ neg(other) }}"
[words]
list = ["a", "b", "c", "d", "e", "f"]
[draw]
kind = "turn(list)"
other = "turn(list, without=kind)"
"""
    task = made(source, n_train=43)
    for side in (0, 1):
        assert spread(example.texts[side].text.split()[1] for example in task.contrasts["kind"]) <= 1
    assert all(e.text.text.split()[1] != e.twin.text.split()[1] for e in task.contrasts["kind"])
    assert all(len(set(e.text.text.split()[1:3])) == 2 for e in task.contrast)


NAMED = """
question = "?"
places = 2
answer.chat = "It is"
[prompt]
plain = "x {{ key(0, word[0]) }} {{ key(1, word[1]) }}"
chat = '''
y
{{ key(0, word[0]) }} {{ key(1, word[1]) }}'''
[words]
list = "objects"
[draw]
word = "row(list)"
"""


def test_phrasings__are_prompts_by_name_and_the_answer_may_be_of_one():
    first, plain, chat = made(NAMED), made(NAMED, phrasing="plain"), made(NAMED, phrasing="chat")
    assert first.contrast.digest == plain.contrast.digest
    assert {example.text.text[0] for example in first.contrast} == {"x"}
    assert {example.text.text[0] for example in chat.contrast} == {"y"}
    assert (plain.chat, chat.chat) == (None, {"answer_prefix": "It is"})
    assert chat.words == plain.words
    with pytest.raises(QKPrismError, match="has no phrasing 'rap'; use plain, chat"):
        made(NAMED, phrasing="rap")
    with pytest.raises(QKPrismError, match="mine has no phrasing 'plain'; it has none by name"):
        made(phrasing="plain")


def test_phrasings__a_mistake_in_any_has_its_line(file):
    def said(text):
        return [(mistake.line, mistake.message) for mistake in check(file(text)).mistakes]

    assert check(file(NAMED)).mistakes == ()
    ((line, _),) = said(NAMED.replace("y\n{{ key(0", "y\n{{ kye(0"))
    assert line == 9
    ((line, _),) = said(NAMED.replace("y\n{{ key(0, word[0])", "y\n{{ key(0, word[7])"))
    assert line == 9
    wrong = said(NAMED.replace("answer.chat", "answer.rap").replace("places = 2", 'shared = "lists"'))
    assert (3, "shared: there is no 'lists'; there are list") in wrong
    assert (4, "answer: there is no 'rap'; there are plain, chat") in wrong


def test_task__places_and_variables_can_be_set():
    task = made(ROWS, places=3, goal="moon")
    assert {len(rows(example.text)[0]) for example in (*task.contrast, *task.test)} == {3}
    assert {rows(example.text)[1] for example in task.contrast} == {"moon"}
    with pytest.raises(
        QKPrismError, match="mine has no 'things' to be set; there are places, shared, thing, box, goal"
    ):
        made(ROWS, things=["hat", "jam"])


def test_from_words__draws_the_contrasts_of_other_words():
    task = made(ROWS)
    few = task.from_words(things=task.words["things"][:5])
    assert {thing for e in few.contrast for thing, _ in rows(e.text)[0]} == set(task.words["things"][:5])
    assert few.test.digest == task.test.digest


def test_fixed__has_the_same_words_and_the_same_question_in_every_prompt():
    fixed = made(ROWS, n_train=48).fixed("thing")
    assert len(fixed) == 48
    assert len({rows(example.text)[1] for example in fixed}) == 1
    orders = {tuple(thing for thing, _ in rows(example.text)[0]) for example in fixed}
    assert len({frozenset(order) for order in orders}) == 1
    assert len(orders) > 10
    assert spread(example.text.positive[0].labels["order"] for example in fixed) == 0
    assert spread(words(example.text.positive[0], example.text) for example in fixed) == 0


# Twins and exchanges: one thing changes


@pytest.mark.parametrize("variable", ["thing", "box"])
def test_twin__one_value_is_another_with_what_follows_from_it(variable):
    column = ["thing", "box"].index(variable)
    for example in made().contrasts[variable]:
        (base, asked), (twin, twin_asked) = rows(example.text), rows(example.twin)
        place = example.text.positive[0].labels["order"]
        changed = [i for i, pair in enumerate(zip(base, twin, strict=True)) if pair[0] != pair[1]]
        assert changed == [place]
        assert base[place][1 - column] == twin[place][1 - column]
        assert twin[place][column] not in [pair[column] for pair in base]
        assert twin_asked == (twin[place][0] if variable == "thing" else asked)
        assert example.twin.positive[0].labels["order"] == place


def test_twin__order_exchanges_two_places_and_the_marks_follow():
    for example in made().contrasts["order"]:
        (base, asked), (twin, twin_asked) = rows(example.text), rows(example.twin)
        assert asked == twin_asked
        assert sorted(base) == sorted(twin)
        assert sum(one != other for one, other in zip(base, twin, strict=True)) == 2
        assert words(example.text.positive[0], example.text) == words(example.twin.positive[0], example.twin)


def test_twins__share_the_texts_of_the_plain_contrast_and_keys_are_labelled_with_what_changes():
    task = made()
    for name, contrast in task.contrasts.items():
        assert [example.text.text for example in contrast] == [example.text.text for example in task.contrast]
        assert contrast.key_labels == ("order", "thing", *(["box"] if name == "box" else []))
    for text in (text for example in task.contrasts["box"] for text in example.texts):
        assert all(words(key, text) == key.labels["box"] for key in (*text.positive, *text.negative))


@pytest.mark.parametrize("factor", ["thing", "box", "order"])
def test_counterfactuals__exchange_one_variable_between_positive_key_and_target(factor):
    task = made()
    pairs = task.counterfactuals(factor)
    assert [base for base, _ in pairs] == list(task.test)
    for base, changed in pairs:
        (before, asked), (after, still_asked) = rows(base.text), rows(changed.text)
        place = base.text.positive[0].labels["order"]
        target = next(span.labels["order"] for span in base.text.negative if span.target)
        assert asked == still_asked
        expected = [list(pair) for pair in before]
        for column, name in enumerate(("thing", "box")):
            if factor in (name, "order"):
                expected[place][column], expected[target][column] = before[target][column], before[place][column]
        assert [list(pair) for pair in after] == expected
        new = changed.text.positive[0].labels["order"]
        assert new == (target if factor == "order" else place)


@pytest.mark.parametrize("factor", ["thing", "box", "order"])
def test_exchanged__twice_is_the_identity(factor):
    template = parse_template(BOXES, file="mine.toml")[0]
    writer = Writer(template, template.lists)
    for roll in rolls(template, 12, "seed"):
        once = writer._exchanged(writer.values(roll), factor)
        twice = writer._exchanged(once, factor)
        assert twice == writer.values(roll)
        assert writer._write(roll, twice) == writer.text(roll)


def test_counterfactuals__of_an_unknown_factor_say_which_there_are():
    with pytest.raises(QKPrismError, match="has no counterfactuals of 'colour'; use thing, box, order"):
        made().counterfactuals("colour")


# Marks


def test_joined__marks_are_offsets_whatever_the_text_contains():
    text = joined(["[+a] ", Mark("[?b]", "+", {"x": 1}), " [-", Mark("]", "-", target=True), "[[", Mark("q", "?")])
    assert text.text == "[+a] [?b] [-][[q"
    assert [words(span, text) for _, span in text.marks] == ["q", "[?b]", "]"]
    assert text.positive[0].labels == {"x": 1}
    assert text.negative[0].target


def test_prompt__marks_as_it_says():
    source = """
question = "?"
prompt = "a {{ pos('one', kind='x') }} b {{ neg(2) }} c {{ target('three') }} d {{ query('four', word='y') }} e"
"""
    example = made(source, n_train=1).contrast[0]
    assert example.text.text == "a one b 2 c three d four e"
    assert [(sign, words(span, example.text), span.target) for sign, span in example.text.marks] == [
        ("?", "four", False),
        ("+", "one", False),
        ("-", "2", False),
        ("-", "three", True),
    ]
    assert example.text.positive[0].labels == {"kind": "x"}


def test_prompts__are_used_equally_often():
    source = """
question = "?"
prompt = ["first {{ pos(a) }} {{ neg(b) }}", "second {{ neg(b) }} {{ pos(a) }}"]
[words]
list = "objects"
[draw]
a = "choice(list)"
b = "choice(list, without=a)"
"""
    starts = Counter(example.text.text.split()[0] for example in made(source).contrast)
    assert starts == {"first": 20, "second": 20}


def test_draws__functions_give_what_they_say():
    source = """
question = "?"
prompt = "x {{ pos(taken[0]) }} {{ neg(mixed[0]) }} {{ count }} {{ both | join(' ') }} {{ kinds[0] }}"
[words]
list = ["a", "b", "c", "d", "e", "f"]
more = ["a", "b", "g", "h", "i", "j"]
[draw]
taken = "sample(list, 2)"
mixed = "shuffle(list)"
count = "number(3, 5)"
both = "each(['list', 'more', 'list'])"
another = "each(['list'], without=taken)[0]"
kinds = ["k", "l"]
"""
    template, mistakes = parse_template(source, file="mine.toml")
    assert not mistakes
    writer = Writer(template, template.lists)
    for roll in rolls(template, 30, "seed"):
        values = writer.values(roll)
        assert len(set(values["taken"])) == 2
        assert sorted(values["mixed"]) == list("abcdef")
        assert 3 <= values["count"] <= 5
        assert len(set(values["both"])) == 3
        assert set(values["both"][::2]) <= set("abcdef")
        assert values["both"][1] in "abghij"
        assert values["another"] not in values["taken"]
        assert values["kinds"] == ["k", "l"]


# Words


def test_words__come_inline_from_the_package_or_from_a_file(file, tmp_path):
    (tmp_path / "own.txt").write_text("red wine\nwhite wine\nice tea\n")
    text = """
question = "?"
prompt = "x {{ pos(choice(a)) }} {{ neg(choice(b)) }} {{ choice(c) }} {{ choice(d) }}"
[words]
a = ["one", "two", "three"]
b = "fruits"
c = "own.txt"
d = "male_names + female_names"
"""
    lists = read_template(file(text)).lists
    assert lists["a"] == ("one", "two", "three")
    assert "apple" in lists["b"]
    assert lists["c"] == ("red wine", "white wine", "ice tea")
    assert {"John", "Mary"} <= set(lists["d"])


def test_words__of_other_folders_are_refused(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("a b c")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.txt").symlink_to(secret)
    for name in ("../secret.txt", str(secret), "link.txt", "nothing.txt", "..\\\\secret.txt"):
        text = BOXES.replace('boxes = "letters"', f'boxes = "{name}"')
        path = inside / "mine.toml"
        path.write_text(text)
        with pytest.raises(QKPrismError, match=r"mine.toml:13: .*beside the template"):
            read_template(path)


def test_words__that_a_tokenizer_splits_are_left_out_with_a_note():
    fits = ("hat", "jam", "pen", "cup", "key", "map", "ring", "coin", "book", "lamp", "bell", "rope", "drum", "fork")
    task = made(tokenizer=byte_level(words=(*fits, *"BCDEFGHJKLMNOPQRSTUVWXYZ")))
    assert set(task.words["things"]) | set(task.held_out["things"]) == set(fits)
    assert "umbrella" in task.dropped["things"]
    assert "words of 'things' are not one token each and were left out" in task.notes[0]


PAIRS = """
question = "?"
held_out = 0.5
prompt = "the {{ pos(word[0]) }} the {{ neg(word[1]) }} the {{ part(pair[0], 1) }}"
[words]
pairs = ["hat/jam", "pen/cup", "hat/umbrella", "necklace/jam", "key/map", "cup/key"]
[draw]
pair = "sample(pairs, 2)"
word = "part(pair, 0)"
"""


def test_words__that_belong_together_are_kept_and_left_out_together():
    task = made(PAIRS, tokenizer=byte_level(words=("hat", "jam", "pen", "cup", "key", "map")))
    assert set(task.dropped["pairs"]) == {"hat/umbrella", "necklace/jam"}
    for example in task.contrast:
        first, _, second = example.text.text.split()[1::2]
        assert f"{first}/{second}" in task.words["pairs"]
    with pytest.raises(QKPrismError, match=r"mine.toml:9: there is no part 2 in '\w+/\w+'"):
        made(PAIRS.replace("part(pair, 0)", "part(pair, 2)"))


def test_words__too_few_that_fit_say_so():
    with pytest.raises(QKPrismError, match=r"a sample of 4 is more than .* words of 'things' are not one token each"):
        made(tokenizer=byte_level())
    text = BOXES.replace('things = "objects"', 'things = ["umbrella", "necklace"]')
    with pytest.raises(QKPrismError, match=r"0 words of the list 'things' are one token each .* and 2 are needed"):
        made(text, tokenizer=byte_level())


def test_words__too_few_for_the_test_say_where():
    text = BOXES.replace('things = "objects"', 'things = ["a", "b", "c", "d", "e", "f", "g"]')
    with pytest.raises(QKPrismError, match=r"mine.toml:16: a sample of 4 is more than the 2 there are") as caught:
        made(text)
    held, more, both = "the 2 of 'things' held out for the test", "(held_out = 0.5)", '(shared = ["things"])'
    assert all(part in str(caught.value) for part in (held, more, both))
    shared = text.replace("places = 4", 'places = 8\nshared = ["things"]')
    with pytest.raises(QKPrismError, match=r"a sample of 8 is more than the 7 there are; use a longer list$"):
        made(shared)


# Mistakes


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "pointed"),
    [
        ('question = "Which box?"', "", 1, "the field question is missing", None),
        ("places = 4", "places = 1", 3, "places is a number from 2 to 100", "places"),
        ("places = 4", 'places = "4"', 3, "places is a whole number", "places"),
        ("places = 4", "place = 4", 3, "unknown field 'place', the nearest is 'places'", "place"),
        ('"box", "order"]\ntwins', '"bx", "order"]\ntwins', 4, "'bx' is not drawn; exchange can have", "bx"),
        ("{{ thing[i] }}", "{{ thng[i] }}", 8, "'thng' is not known here; did you mean 'thing'?", "thng"),
        ("{%- endfor %}", "", 9, "Unexpected end of template", None),
        ("key(i, box[i]", "key(i, box[9]", 8, "there is no item 9 in a list of 4", None),
        ('"letters"', '"leters"', 13, "no list of words is called 'leters'", "boxes"),
        ('"letters"', '["a"]', 13, "the list 'boxes' has 1 words; it needs at least 2", "boxes"),
        ("sample(boxes, places)", "sample(boxes, places", 17, "unexpected end of template", "box"),
        ("sample(boxes, places)", "sample(boxes)", 17, "argument: 'count'", "box"),
        ("sample(boxes, places)", "sample(boxes, 99)", 17, "a sample of 99 is more than", "sample"),
        ('goal = "thing[asked]"', 'goal = "thing[askd]"', 18, "did you mean 'asked'?", "askd"),
        ('goal = "thing[asked]"', 'key = "thing[asked]"', 18, "'key' cannot be the name of a variable", "key"),
        ('goal = "thing[asked]"', 'boxes = "thing[asked]"', 18, "is the name of a list of words too", "boxes"),
        ("[draw]", "[draw", 15, "broken TOML", None),
        ("{{ key(i, box[i], order=i, thing=thing[i]) }}", "{{ box[i] }}", 7, "no positive key is marked", None),
        ("{{ key(i, box[i], order=i, thing=thing[i]) }}", "{{ pos(box[i]) }}", 7, "mark one with neg(word)", None),
        ('question = "', "question = 'What", 2, "a quote is not closed", None),
        ("{{ goal }} is in box", "{{ query(goal) }} {{ query(goal) }}", 7, "2 words are marked as the query", None),
        ("order=i", "order=box", 8, "the label 'order' is a word, a number", None),
    ],
)
def test_check__every_mistake_has_its_line(file, old, new, line, message, pointed):
    assert old in BOXES
    found = check(file(BOXES.replace(old, new)), n=8)
    assert any(message in mistake.message for mistake in found.mistakes), found.mistakes
    mistake = next(mistake for mistake in found.mistakes if message in mistake.message)
    assert mistake.line == line
    picture = mistake.picture(found.source)
    assert picture.splitlines()[0] == f"{line:>5} | {found.source.splitlines()[line - 1]}"
    if pointed:
        start, end = picture.splitlines()[1].index("^"), picture.splitlines()[1].rindex("^") + 1
        assert picture.splitlines()[0][start:end] == pointed


def test_check__several_mistakes_are_told_at_once(file):
    found = check(file(BOXES.replace("thing[i] }}", "thng[i] }}").replace('"letters"', '"leters"')))
    assert [mistake.line for mistake in found.mistakes] == [8, 13]


def test_read_template__the_first_mistake_is_an_error_of_one_line(file):
    path = file(BOXES.replace("places = 4", "places = 0"))
    with pytest.raises(QKPrismError, match=r"mine.toml:3: places is a number from 2 to 100, not 0$"):
        read_template(path)


def test_read_template__an_unknown_name_is_told_the_nearest():
    with pytest.raises(QKPrismError, match="did you mean 'induction'"):
        read_template("inducton")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('exchange = ["thing", "box", "order"]', 'exchange = ["goal"]', "is no list with a value for every place"),
        ("{{ thing[i] }}", "{{ i }}", "exchange: 'thing' changes nothing in"),
        ('twins = ["thing", "box", "order"]', 'twins = ["fixed"]', "twins: 'fixed' is the same in"),
    ],
)
def test_check__says_where_an_exchange_or_a_twin_is_not_possible(file, old, new, message):
    text = BOXES.replace(old, new) + 'fixed = "1 + 1"\n'
    found = check(file(text), n=8)
    assert any(message in mistake.message for mistake in found.mistakes), found.mistakes


# Balance


def example(*keys, query=" end"):
    """A text of signs and words: ("+hat", "-jam")."""
    return Example.parse("x " + " ".join(f"[{key[0]}{key[1:]}]" for key in keys) + query)


def test_balance__finds_what_gives_the_answer_away():
    late = [example("-" + "ab"[i % 2], "+" + "ba"[i % 2]) for i in range(40)]
    assert {row.predictor for row in balance(late) if row.tells} == {"place", "distance"}
    told = [example(*(("+hat", "-jam") if i // 3 % 2 else ("-jam", "+hat"))) for i in range(40)]
    assert {row.predictor for row in balance(told) if row.tells} == {"token"}
    long = [
        example(*((f"+{'a' * 9}{i}", f"-b{i}") if i // 3 % 2 else (f"-b{i}", f"+{'a' * 9}{i}"))) for i in range(10, 50)
    ]
    assert {row.predictor for row in balance(long) if row.tells} == {"length"}


def test_balance__is_a_coin_where_nothing_tells():
    for seed in range(5):
        assert not any(row.tells for row in balance(made(seed=seed, n_train=100).contrast))


def test_balance__is_measured_on_examples_that_were_not_learned_from():
    """Every word comes once: who remembers them all knows nothing of the others."""
    unique = [example(*((f"+a{i}", f"-b{i}") if i // 3 % 2 else (f"-b{i}", f"+a{i}"))) for i in range(10, 90)]
    token = next(row for row in balance(unique) if row.predictor == "token")
    assert token.auc == 0.5


def test_check__says_what_tells_and_is_quiet_where_it_was_declared(file):
    text = """
question = "Is it the first?"
prompt = "x {{ pos(choice(words)) }} {{ neg(choice(words)) }} y"
[words]
words = "objects"
"""
    notes = " ".join(check(file(text), n=80).notes)
    assert "the place of a key alone distinguishes positive from negative keys (AUC 1.00" in notes
    declared = text.replace("prompt =", 'confounds = ["place: by intent", "distance"]\nprompt =')
    found = check(file(declared), n=80)
    assert not found.notes
    assert {row.predictor for row in found.balance if row.tells} == {"place", "distance"}


@pytest.mark.parametrize(
    ("prompt", "note"),
    [
        ("{{ pos(a) }} {{ neg(b) }} end", "a key is the first token of the text"),
        ("x {{ pos(a) }} {{ neg(b) }} ", "the text ends with a space"),
        ("x {{ pos(a ~ ' ' ~ b) }} {{ neg(b) }} y", "a key is more than one token"),
        ("x {{ pos('same') }} {{ neg('other') }} y", "80 prompts are 1 different texts"),
    ],
)
def test_check__notes_what_is_odd(file, prompt, note):
    text = f"""
question = "?"
prompt = "{prompt}"
[words]
list = "objects"
[draw]
a = "choice(list)"
b = "choice(list, without=a)"
"""
    assert any(note in said for said in check(file(text), n=80).notes)


def test_check__notes_an_exchange_that_moves_other_keys(file):
    things = 'things = ["red hat", "pen", "cup", "ink", "old map", "key", "jam", "ring"]'
    text = BOXES.replace('things = "objects"', things).replace("places = 4", "places = 2\nheld_out = 0.5")
    notes = [note for note in check(file(text), n=80).notes if "moves keys to other tokens" in note]
    assert [note.split()[1] for note in notes] == ["'thing'", "'order'"]
    assert not check(file(), n=80).notes


def test_check__a_key_after_the_query_is_a_mistake(file):
    text = """
question = "?"
prompt = "x {{ query('q') }} {{ pos('a') }} {{ neg('b') }}"
"""
    assert "comes after the query" in check(file(text), n=8).mistakes[0].message


def test_docs__the_template_that_is_shown_can_be_used(file):
    page = (Path(__file__).parent.parent / "docs" / "contrasts.md").read_text()
    shown = page.split("```toml\n")[1].split("```")[0]
    assert len(shown.splitlines()) <= 25
    found = check(file(shown), n=80)
    assert (found.mistakes, found.notes) == ((), ())
    mistaken = page.split("```toml\n")[2].split("```")[0]
    lists = 'question = "?"\n' + mistaken + '[words]\nmen = "male_names"\nwomen = "female_names"\n'
    assert {row.predictor for row in check(file(lists), n=80).balance if row.tells} >= {"place", "token"}


# Names and files


def test_resolve__takes_files_templates_and_names_of_the_shelf(file, tmp_path):
    path = file()
    assert resolve(path, limit=5).contrast.name == "mine"
    assert len(resolve("induction", "search").contrast) == 256
    assert len(resolve("induction", "test", limit=3).contrast) == 3
    twins = resolve("boxes:thing", limit=5).contrast
    assert twins.name == "thing"
    assert twins[0].twin is not None
    drawn = resolve("induction", limit=9).contrast
    drawn.write(tmp_path / "drawn.jsonl")
    assert resolve(tmp_path / "drawn.jsonl").contrast.digest == drawn.digest
    assert len(resolve(tmp_path / "drawn.jsonl", limit=4).contrast) == 4
    assert resolve("previous_token", limit=1).frame == "relative"
    assert [is_template(name) for name in ("a.toml", "boxes", "boxes:thing", "a.jsonl", "box")] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("inductoin", "not on the shelf; did you mean 'induction'"),
        ("nothing.jsonl", "cannot be read"),
        ("nothing.toml", "cannot be read"),
        ("boxes:colour", "boxes has no twins of 'colour'; it has order, thing, box"),
    ],
)
def test_resolve__mistakes_say_what_there_is(name, message):
    with pytest.raises(QKPrismError, match=message):
        resolve(name, limit=1)


def test_read__tables_are_contrasts(tmp_path):
    csv = tmp_path / "mine.csv"
    csv.write_text(
        "text,query,positive,negative,weight,group,labels\n"
        'a Z b O c,,"[2, 3]","[[6, 7]]",,g,"{""x"": 1}"\n'
        '"d, Z b O c",9:10,3:4,7:8,2,,\n'
        "d [+Z] b [-O] c,,,,,,\n"
    )
    contrast = Contrast.read(csv)
    assert contrast.name == "mine"
    assert [[words(s, e.text) for s in (*e.text.positive, *e.text.negative)] for e in contrast] == [["Z", "O"]] * 3
    assert contrast[0].group == "g"
    assert contrast[0].labels == {"x": 1}
    assert contrast[1].weight == 2
    assert words(contrast[1].text.query, contrast[1].text) == "c"
    (tmp_path / "mine.tsv").write_text("text\ttwin\nthe [+Z] is\tthe [+O] is\n")
    assert Contrast.read(tmp_path / "mine.tsv")[0].twin is not None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("text,positive\nabc,one\n", r"mine.csv:2: positive is JSON such as \[39, 40\], or 39:40"),
        ("text,colour\nabc,red\n", r"mine.csv:2: unknown field 'colour'"),
        ("text\n", r"mine.csv:1: the table has no rows"),
        ("text\na,b\n", r"mine.csv:2: the row has more cells"),
        ('text\n"abc\n', r"mine.csv:2: broken table"),
        ("", r"mine.csv:1: the table has no rows"),
    ],
)
def test_read__mistakes_in_tables_have_their_line(tmp_path, table, message):
    path = tmp_path / "mine.csv"
    path.write_text(table)
    with pytest.raises(QKPrismError, match=message):
        Contrast.read(path)


def test_read__parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(QKPrismError, match="Parquet needs pyarrow; install it"):
        Contrast.read(tmp_path / "mine.parquet")


def test_read__parquet_and_datasets_on_disk_are_read_in_the_order_of_their_shards(tmp_path):
    import pyarrow
    import pyarrow.parquet as parquet

    path = tmp_path / "mine.parquet"
    rows = [{"text": f"a Z b O c{n}", "positive": [2, 3], "negative": [[6, 7]], "group": None} for n in range(700)]
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, path, row_group_size=300)
    texts = [row["text"] for row in rows]
    found = Contrast.read(path)
    assert [example.text.text for example in found] == texts
    assert words(found[0].text.positive[0], found[0].text) == "Z"
    for number, rows_of in enumerate((table[:300], table[300:])):  # shards, of both kinds
        (tmp_path / "shards").mkdir(exist_ok=True)
        parquet.write_table(rows_of, tmp_path / "shards" / f"{number}.parquet")
        (tmp_path / "saved").mkdir(exist_ok=True)
        with (
            pyarrow.OSFile(str(tmp_path / "saved" / f"data-{number:05}-of-00002.arrow"), "wb") as file,
            pyarrow.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(rows_of)
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / "saved" / name).write_text("{}")
    for folder in ("shards", "saved"):
        assert [example.text.text for example in Contrast.read(tmp_path / folder)] == texts
