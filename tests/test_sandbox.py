"""Templates of strangers: whatever they try, it ends in one line, soon; and what is allowed works as in any Jinja."""

from __future__ import annotations

import string
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkprism.contrasts.checks import check
from qkprism.contrasts.drawing import Writer, rolls
from qkprism.contrasts.sandbox import STEP_LIMIT, Sandbox
from qkprism.contrasts.templates import parse_template, read_template
from qkprism.contrasts.values import ITEM_LIMIT, NUMBER_LIMIT, TEXT_LIMIT, Fault, Mark
from qkprism.errors import QKPrismError

VALUES = {"words": ["hat", "jam", "pen"], "table": {"a": 1}, "mark": lambda word: Mark(word, "+")}
LOOPS = "{% for a in words * 30 %}"


def written(source, **values):
    sandbox = Sandbox()
    return list(sandbox.write(sandbox.text(source), {**VALUES, **values}))


def text(source, **values):
    return "".join(map(str, written(source, **values)))


HOSTILE = {
    "nested loops": LOOPS * 4 + "x" + "{% endfor %}" * 4,
    "too many nested loops": LOOPS * 30 + "{% endfor %}" * 30,
    "a long text": "{{ 'a' * 1000000000 }}",
    "a long text by a power": "{{ 'a' * 10 ** 9 }}",
    "a text that doubles": "{% set x = 'aaaaaaaa' %}" + "{% set x = x ~ x %}" * 60 + "{{ x }}",
    "a sum that doubles": "{% set x = 'aaaaaaaa' %}" + "{% set x = x + x %}" * 60 + "{{ x }}",
    "a list that doubles": "{% set x = [1] %}" + "{% set x = [x, x] %}" * 60 + "{{ x[0] }}",
    "a list of lists in a comparison": "{% set x, y = [1], [1] %}"
    + "{% set x, y = [x, x], [y, y] %}" * 60
    + "{{ x == y }}",
    "a long list": "{{ (words * 100000)[0] }}",
    "long output": LOOPS + "{{ 'a' * 19000 }}" + "{% endfor %}",
    "a large number": "{% set x = 9999 %}" + "{% set x = x * x %}" * 60 + "{{ x }}",
    "a number of thousands of digits": "{{ " + "9" * 5000 + " }}",
    "a power": "{{ 10 ** 10 ** 10 }}",
    "a class": "{{ words.__class__.__mro__ }}",
    "a class by item": "{{ words['__class__'] }}",
    "a class by filter": "{{ words | attr('__class__') }}",
    "a class of a text": "{{ ''.__class__.__base__.__subclasses__() }}",
    "the globals of a function": "{{ mark.__globals__ }}",
    "the code of a function": "{{ mark.func_code }}",
    "the template itself": "{{ self }}",
    "the environment": "{{ self._TemplateReference__context.environment }}",
    "a format": "{{ '{0.__class__}'.format(words) }}",
    "a wide format": "{{ '%1000000000d' % 1 }}",
    "a format filter": "{{ '%s' | format(words) }}",
    "centred": "{{ 'a'.center(1000000000) }}",
    "centred by a filter": "{{ 'a' | center(1000000000) }}",
    "justified": "{{ 'a'.ljust(1000000000) }}",
    "expanded": "{{ '\t'.expandtabs(1000000000) }}",
    "replaced": "{{ ('a' * 9999).replace('a', 'b' * 9999) }}",
    "translated": "{{ 'a'.translate({97: 'b' * 9999}) }}",
    "joined": "{{ (words * 1000) | join('a' * 9999) }}",
    "lorem ipsum": "{{ lipsum(n=1000000) }}",
    "a cycler": "{{ cycler('a').next() }}",
    "a namespace": "{% set n = namespace(x=1) %}{{ n.x }}",
    "a long range": "{% for i in range(1000000000) %}x{% endfor %}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a recursive loop": "{% for a in words recursive %}{{ loop(words) }}{% endfor %}",
    "a call block": "{% call mark() %}{% endcall %}",
    "an include": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}{{ os.system('ls') }}",
    "an import from": "{% from 'os' import system %}",
    "an extension": "{% extends 'base' %}",
    "open": "{{ open('/etc/passwd').read() }}",
    "a changed list": "{{ words.append('x') }}",
    "a changed table": "{{ table.update({'a': 2}) }}",
    "deep brackets": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "deep lists": "{{ " + "[" * 3000,
    "many nots": "{{ " + "not " * 2000 + "1 }}",
    "many minus signs": "{{ " + "-" * 4000 + "1 }}",
    "many attributes": "{{ words" + ".a" * 4000 + " }}",
    "many items": "{{ words" + "[0]" * 3000 + " }}",
    "many sums": "{{ 1" + "+1" * 4000 + " }}",
    "many filters": "{{ words" + "|list" * 1900 + " }}",
    "many ifs": "{% if 1 %}" * 400 + "{% endif %}" * 400,
    "only openings": "{{" * 4000,
    "only blocks": "{%" * 4000,
    "a long comment": "{#" * 4000,
    "a very long template": "x" * 100_000,
    "a mark in a text": "{{ mark('a') ~ 'b' }}",
    "a function as text": "{{ mark }}",
    "a list as text": "{{ words }}",
    "a number that is called": "{{ 1() }}",
    "a division": "{{ 1 / 0 }}",
    "an unknown name": "{{ wrds[0] }}",
    "an unknown tag": "{% evil %}",
    "a debug tag": "{% debug %}",
    "a do tag": "{% do words.append(1) %}",
    "translations": "{% trans %}x{% endtrans %}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_sandbox__hostile_templates_end_in_one_line(source):
    with pytest.raises(Fault) as caught:
        written(source)
    assert len(str(caught.value).splitlines()) == 1
    assert 0 < len(str(caught.value)) <= 400
    assert caught.value.line >= 1


@pytest.mark.parametrize(
    ("source", "steps"),
    [
        (LOOPS + "{{ a }}{% endfor %}", 90),
        ("{% for a in range(500) %}{{ 1 if words * 300 == words * 300 }}{% endfor %}", 500),
        ("{% for a in range(1000) %}{{ sorted(words * 1000)[0] }}{% endfor %}", 1000),
    ],
)
def test_sandbox__what_takes_long_costs_steps(source, steps):
    """Whatever is done with a list of n items costs a share of n steps, so that steps bound the time."""
    sandbox = Sandbox()
    spent = []
    cage = sandbox._cage
    step = cage.step
    cage.step = lambda count=1: (spent.append(count), step(count))
    functions = {"sorted": lambda items: sorted(items), "range": lambda count: list(range(count))}
    error = refused(lambda: list(sandbox.write(sandbox.text(source), {**VALUES, **functions})))
    assert error is None or f"{STEP_LIMIT} steps" in str(error)
    assert sum(spent) >= steps


def test_sandbox__bounds_are_where_they_are_said_to_be():
    assert len(text(f"{{{{ 'a' * {TEXT_LIMIT} }}}}")) == TEXT_LIMIT
    assert text(f"{{{{ (words * {ITEM_LIMIT // 3}) | length }}}}") == str(ITEM_LIMIT // 3 * 3)
    assert text(f"{{{{ {NUMBER_LIMIT} + 0 }}}}") == str(NUMBER_LIMIT)
    for source in (f"{{{{ 'a' * {TEXT_LIMIT + 1} }}}}", f"{{{{ {NUMBER_LIMIT} + 1 }}}}"):
        with pytest.raises(Fault, match="too l"):
            text(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for w in words %}{{ loop.index0 }}{{ w }}{{ ', ' if not loop.last }}{% endfor %}", "0hat, 1jam, 2pen"),
        ("{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}", "3 7 "),
        ("{% if words | length > 2 and 'jam' in words %}{{ words[-1].upper() }}{% else %}no{% endif %}", "PEN"),
        ("{% set x = 3 %}{{ x * 2 - 1 }} {{ x // 2 }} {{ x % 2 }}", "5 1 1"),
        ("{{ words[1:] | reverse | join('-') }} {{ 'a' ~ 1 }}", "pen-jam a1"),
        ("{{ table.a }}{{ table['a'] }} {% for k, v in table.items() %}{{ k }}{{ v }}{% endfor %}", "11 a1"),
        ("{{ {'x': 'y'}['x'] }} {{ words.index('jam') }} {{ 1 if 3 is odd }}", "y 1 1"),
        ("{% for w in words if w != 'jam' %}{{ w }} {% endfor %}", "hat pen "),
        ("{% raw %}{{ not read }}{% endraw %} [+x] {{ '{' }}", "{{ not read }} [+x] {"),
        ("a\n{% for w in words %}\n{{ w }}\n{% endfor %}\nb", "a\nhat\njam\npen\nb"),
    ],
)
def test_sandbox__is_jinja(source, expected):
    assert text(source) == expected


def test_sandbox__keeps_marks_apart_from_text_that_looks_alike():
    pieces = written("[+{{ words[0] }}] {{ mark('[+x]') }}{{ mark(']') }}")
    assert pieces == ["[+", "hat", "] ", Mark("[+x]", "+"), Mark("]", "+")]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a\nb {{ wrong }}", 2),
        ("\n\n{% if %}", 3),
        ("a\n{{ words[9] }}\n", 2),
        ("{% for a in words %}\n\n{{ 1 / 0 }}{% endfor %}", 3),
    ],
)
def test_fault__knows_its_line(source, line):
    with pytest.raises(Fault) as caught:
        written(source)
    assert caught.value.line == line


def test_sandbox__values_are_not_changed():
    sandbox, values = Sandbox(), {"words": ["a", "b"]}
    assert sandbox.value(sandbox.expression("words + ['c']"), values) == ["a", "b", "c"]
    assert values == {"words": ["a", "b"]}


FILE = """\
question = "?"
places = 3
prompt = '''PROMPT'''
[words]
things = "objects"
[draw]
thing = '''DRAW'''
goal = "thing[asked]"
"""


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_template__hostile_prompts_and_draws_are_mistakes_with_a_line(source, tmp_path):
    draw = source.removeprefix("{{").removesuffix("}}").strip()
    for prompt, expression in ((source, "sample(things, places)"), ("{{ key(0, goal) }}", draw)):
        path = tmp_path / "hostile.toml"
        path.write_text(FILE.replace("PROMPT", prompt.replace("'", '"')).replace("DRAW", expression.replace("'", '"')))
        found = check(path, n=8)
        assert found.mistakes
        for mistake in found.mistakes:
            assert len(mistake.message.splitlines()) == 1
            assert mistake.picture(found.source)


# Fuzzing: no traceback, whatever is written


SHELF = ("boxes", "coreference", "bracket", "json", "greater", "subject_verb", "previous_token")
PIECES = [
    *(
        "{{",
        "}}",
        "{%",
        "%}",
        "'''",
        '"',
        "'",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "=",
        ",",
        "\n",
        "#",
        "\\",
        "\0",
        "\ud800"[:0],
    ),
    *("asked", "other", "places", "key(", "pos(", "neg(", "query(", "sample(", "each(", "[words]", "[draw]", "loop"),
    *(" for i in ", " if ", " else ", "|join", ".__class__", "**", "9" * 30, "1e400", "-1", "none", "true", "é", "🎲"),
]


def mutated(source, rng):
    """A file with some of its characters gone, doubled, moved, or something else in their place."""
    for _ in range(rng.randint(1, 6)):
        start = rng.randrange(len(source) + 1)
        end = min(start + rng.choice([0, 0, 1, 2, 5, 30]), len(source))
        kinds = [rng.choice(PIECES), source[start:end] * 2, "", rng.choice(string.printable)]
        source = source[:start] + rng.choice(kinds) + source[end:]
    return source


def judge(source):
    """Read and draw; a mistake is one line with a picture, and no other error may come out."""
    template, mistakes = parse_template(source, file="fuzzed.toml")
    assert (template is None) == bool(mistakes)
    for mistake in mistakes:
        assert mistake.line >= 1
        assert len(mistake.message.splitlines()) == 1
        mistake.picture(source)
    if template is None:
        return False
    error = refused(lambda: draw(template))
    assert error is None or len(str(error).splitlines()) == 1
    return error is None


def draw(template):
    writer = Writer(template, template.lists)
    for roll in rolls(template, 2, "seed"):
        writer.text(roll)
        for variable in template.exchange:
            writer.exchanged(roll, variable)
        for variable in template.twins:
            writer.twin(roll, variable)


def refused(call):
    """The error that a user would see, if there is one."""
    try:
        call()
    except QKPrismError as error:
        return error
    return None


@pytest.mark.parametrize("name", SHELF)
def test_template__a_hundred_mutations_each_give_no_traceback(name):
    source, good = read_template(name).source, 0
    assert judge(source)
    for seed in range(100):
        good += judge(mutated(source, Random(f"{name} {seed}")))
    assert good < 60  # most of them are broken, or the fuzzing fuzzes nothing


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*PIECES, "words", "[0]", " ", "1", "+", "~", "."]), max_size=20).map("".join))
def test_sandbox__any_pieces_give_text_or_a_fault(source):
    for whole in (f"{{{{{source}}}}}", source):
        error = refused(lambda whole=whole: text(whole))
        assert error is None or (isinstance(error, Fault) and len(str(error).splitlines()) == 1)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_parse_template__any_text_gives_mistakes(source):
    judge(source)
