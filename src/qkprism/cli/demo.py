"""`qkprism demo`: the main job in two minutes, said in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkprism.cli.app import app
from qkprism.cli.inputs import Loading
from qkprism.cli.printing import print_item
from qkprism.cli.reports import keep_and_write
from qkprism.runs.files import path_of

TASK = "coreference"
HEADS, SEARCHED, EXAMPLES, SHOWN = 4, 80, 300, 24
PROMPT = "Last week my sister Emma called David about the house because he"
ANSWER = "David"


@app.command(epilog="Example:  qkprism demo --save runs/demo")
def demo(
    loading: Loading,
    save: Annotated[Path, typer.Option(help="Where features and the page are written.")] = Path("runs/demo"),
) -> None:
    """A first look: which heads know who a pronoun refers to, what they rely on, and one prompt explained."""
    place = path_of(save)
    import qkprism as qk
    from qkprism.contrasts import Text
    from qkprism.results.words import told_p

    loaded = loading.load()
    task = qk.task(TASK, tokenizer=loaded.tokenizer, n_train=EXAMPLES, n_search=SEARCHED)
    _say(
        f"{loaded.name} has {sum(loaded.heads_per_layer.values())} heads. Each reads {len(task.search)} prompts such as"
    )
    typer.echo(f'  "{next(iter(task.search)).text.text}"')
    scores = qk.find_heads(loaded, task.search)
    _say(
        f"1. Which heads attend to the person that the pronoun refers to? Guessing is right in {scores.chance:.0%}.\n"
        "   (q: the share of heads as good as this that would be there by chance)"
    )
    best = scores.top(HEADS)
    for row in scores.to_frame().head(HEADS).to_dict("records"):
        typer.echo(
            f"  {row['head']}: right in {row['accuracy']:.0%} of the prompts (q {told_p(row['q'])}); "
            f"gives that person {row['attention_positive']:.2f} of its attention"
        )
    _say(f"2. What do they rely on? {EXAMPLES} prompts: the right person against the other.")
    features = qk.decompose(loaded, task.contrasts, heads=best)
    features.save(place)
    for feature in features.by_evidence()[:6]:
        typer.echo(f"  {feature.head} {feature.contrast}: {feature.evidence} (p {told_p(feature.p)})")
    typer.echo("  Directions that hold are the evidence; to tell two genders apart one is enough.")
    _say("3. Where does every head look on plain text? Surveyed once, on its own text, and kept: about a minute.")
    why = qk.explain(loaded, PROMPT, key=ANSWER, features=features)
    _say(f'4. Why do they attend to "{ANSWER}" in a prompt of our own?')
    typer.echo(f'  "{PROMPT}"')
    for edge in why:
        print_item("  - ", edge.sentence)
    page = keep_and_write(loaded, place, texts=task.search[:SHOWN], scores=scores, prompts=[Text(PROMPT)])
    _say("The named part is what this contrast explains; an unnamed match is what query and key share besides.")
    _say("Next: a prompt of yours, the proof by editing keys, or the whole study of binding with all its proofs:")
    typer.echo(f'  qkprism explain "..." --features {save}')
    typer.echo(f"  qkprism intervene {save} {TASK} --limit 60")
    typer.echo("  qkprism binding")
    typer.echo(f"Page: {page.resolve()}")


def _say(text: str) -> None:
    typer.echo(f"\n{text}")
