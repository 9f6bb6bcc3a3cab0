"""Does the part that `explain` names as decisive decide? 50 plain sentences, the strongest edges of each.

    python benchmarks/explain.py                    # figures as printed in benchmarks/README.md
    python benchmarks/explain.py --atlas FOLDER     # with an atlas that is at hand

A part is removed from the logits of a row, and the attention of the edge is compared with what it was. Two ways:

subtract    the part is taken off every token of the row
level       it is set to its mean over the tokens after the first; at the first token it stays as it is

Setting a part to its mean over the *whole* row is the same as subtracting it: attention does not notice a number that
all logits share. The two ways differ in what they do to the first token: where heads rest there, a part that is
taken off whole moves attention between the first token and all the others, whatever it says of the others. `level` asks
what the sentence says: why this key and not another one.

Several definitions of what decides are compared: which of them names the part whose removal moves the attention most?
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

import qkprism as qk
from qkprism.atlas.explain import atlas_for, explain
from qkprism.atlas.explanation import Edge, HeadRow

SENTENCES = """
The old baker opened his shop before sunrise and put the warm bread on the shelf.
My sister lost her keys again, so she had to wait outside until our father came home.
When the rain stopped, the children ran out to look for worms in the wet grass.
The committee will meet on Thursday to decide whether the bridge should be closed.
He poured the milk into a bowl, and the cat drank it at once.
Nobody in the village remembered who had planted the tall trees along the river.
The train to Lisbon leaves at nine, but the train to Porto leaves at noon.
If you heat the sugar slowly, it turns brown and begins to smell like caramel.
Maria gave Tom the letter, and Tom gave Maria the photograph.
After the storm the lighthouse was dark for three nights.
The teacher asked the students to write down the names of all the planets they knew.
Her grandfather built the boat himself, out of wood that he had found on the beach.
There are two doors in the hall: the green door leads to the garden.
The company sold its factories in Spain and its offices in Greece.
I would have called you earlier, but my phone was at the bottom of the lake.
A small crowd had gathered in front of the theatre long before the doors opened.
The recipe says that you should wash the rice twice before you boil the rice.
Doctors who sleep too little make more mistakes than doctors who rest.
The king had three daughters, and the youngest of them could speak with birds.
We walked for hours through the forest without meeting a single person.
The museum keeps its oldest maps in a cold room without windows.
Paul thinks that Anna is late, and Anna thinks that Paul is early.
On Monday the water was blue, on Tuesday it was grey, and on Wednesday it was green.
The engineer explained why the engine had failed, but nobody believed the engineer.
Some of the apples were red, some of the apples were yellow, and one was rotten.
The judge read the sentence slowly so that everyone in the room could hear it.
It takes about eight minutes for the light of the sun to reach the earth.
She bought four chairs, a table and a lamp, and then she painted the table white.
The dog barked at the postman, who had been bitten by the dog the year before.
In the winter the lake freezes, and people drive their cars across the ice.
The first edition of the book was printed in Leipzig, the second edition in Vienna.
They repaired the roof, cleaned the chimney and planted roses by the wall.
What the visitors liked most was the view from the top of the tower.
The nurse told the patient that the doctor would see him in the afternoon.
His handwriting was so small that even he could not read it the next day.
The orchestra played the piece twice because the audience would not stop clapping.
Please put the large box on the floor and the small box on the shelf.
The price of coffee rose by ten percent, while the price of tea fell.
Every evening the fisherman counted his nets, and every morning one of them was gone.
The children built a snowman, gave him a hat, and named him Mister Frost.
Although the map was wrong, the travellers found the monastery before dark.
The prisoner wrote a letter to the governor, and the governor wrote back.
Bees can see colours that people cannot see, but they cannot see red.
The new mayor promised to build a school, a hospital and a swimming pool.
He folded the newspaper, put on his glasses and looked at the stranger for a long time.
The island has no rivers, so the islanders collect rain in tanks under their houses.
Her answer was short and clear: she would not sign the contract.
The violin belongs to Clara, the cello belongs to David, and the piano belongs to Clara.
As soon as the curtain rose, the actor forgot the first line of the play.
They sailed north for six days, and on the seventh day they saw land.
""".strip().splitlines()
TOP = 8
Removal = Callable[[HeadRow, str], Tensor]


def subtract(row: HeadRow, part: str) -> Tensor:
    """The attention of a row from which a part is taken off."""
    return (row.logits - row.terms[part]).softmax(-1)


def level(row: HeadRow, part: str) -> Tensor:
    """The attention of a row in which a part is the same for all tokens but the first; there it stays."""
    if part == "first token":
        return subtract(row, part)
    seen = row.logits.isfinite()
    seen[0] = False
    change = row.terms[part] - row.terms[part][seen].mean()
    change[0] = 0.0
    return (row.logits - change).softmax(-1)


REMOVALS: dict[str, Removal] = {"subtract": subtract, "level": level}


def over_rival(row: HeadRow, edge: Edge) -> dict[str, float]:
    """The lead over the most attended other key but the first."""
    weight = row.attention.clone()
    weight[0] = weight[edge.key] = -1.0
    rival = int(weight.argmax())
    return {name: float(term[edge.key] - term[rival]) for name, term in row.terms.items()}


def over_later_mean(row: HeadRow, edge: Edge) -> dict[str, float]:
    """The lead over the mean of all tokens after the first."""
    seen = row.logits.isfinite()
    seen[0] = False
    return {name: float(term[edge.key] - term[seen].mean()) for name, term in row.terms.items()}


def over_others(row: HeadRow, edge: Edge) -> dict[str, float]:
    """The lead over the mean of the other tokens after the first, weighted by their attention."""
    weight = row.attention.clone()
    weight[0] = weight[edge.key] = 0.0
    weight = weight / weight.sum()
    return {name: float(term[edge.key] - weight @ term) for name, term in row.terms.items()}


def over_weighted(row: HeadRow, edge: Edge) -> dict[str, float]:
    """The lead over the mean of all tokens, weighted by their attention: the slope of the attention."""
    return {name: float(term[edge.key] - row.attention @ term) for name, term in row.terms.items()}


def removed(removal: Removal) -> Callable[[HeadRow, Edge], dict[str, float]]:
    """How much attention the edge loses when a part is removed."""

    def shares(row: HeadRow, edge: Edge) -> dict[str, float]:
        return {name: edge.attention - float(removal(row, name)[edge.key]) for name in row.terms}

    return shares


DEFINITIONS: dict[str, Callable[[HeadRow, Edge], Mapping[str, float]]] = {
    "lead over the rival": over_rival,
    "lead over the mean of later tokens": over_later_mean,
    "lead over the others, by attention": over_others,
    "lead over all, by attention": over_weighted,
    "loss of attention, subtract": removed(subtract),
    "loss of attention, level": removed(level),
}
AS_TOLD = "as the sentence says"


@dataclass
class Tally:
    """How often what decides by a definition moves the attention of its edge most, by way of removal."""

    edges: int = 0
    right: Counter[tuple[str, str]] = field(default_factory=Counter)
    decided: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, row: HeadRow, edge: Edge) -> None:
        """Count one edge."""
        self.edges += 1
        named = {AS_TOLD: edge.decides}
        for definition, shares_of in DEFINITIONS.items():
            shares = shares_of(row, edge)
            named[definition] = max(shares, key=lambda name: shares[name])
        self.decided.update(named.items())
        for way, removal in REMOVALS.items():
            moved = {name: abs(edge.attention - float(removal(row, name)[edge.key])) for name in row.terms}
            most = max(moved.values())
            self.right.update((definition, way) for definition, name in named.items() if moved[name] >= most)

    def report(self) -> None:
        """Print shares of edges."""
        print(f"{self.edges} edges: how often the part that decides moves the attention most when it is removed")
        for definition in (AS_TOLD, *DEFINITIONS):
            figures = "  ".join(f"{way} {self.right[definition, way] / self.edges:.2f}" for way in REMOVALS)
            parts = ", ".join(f"{name} {n}" for (of, name), n in self.decided.most_common() if of == definition)
            print(f"  {definition:36s} {figures}   {parts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atlas", help="folder of an atlas; without it that of the cache")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = qk.load("smollm2")
    last, middle = Tally(), Tally()
    atlas = atlas_for(model, arguments.atlas)
    for sentence in SENTENCES[: arguments.sentences]:
        told = explain(model, sentence, atlas=atlas, top=TOP, progress=False)
        again = explain(model, sentence, query=2 * len(told.tokens) // 3, atlas=atlas, top=TOP, progress=False)
        for tally, one in ((last, told), (middle, again)):
            for edge in one:
                tally.add(one.rows[edge.head], edge)
    print("from the last token of the sentence:")
    last.report()
    print("from a token at two thirds of it:")
    middle.report()


if __name__ == "__main__":
    main()
