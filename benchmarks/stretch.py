"""Are parts badly known in heads whose joint projectors are badly conditioned? Toy heads, whose true parts are known.

python benchmarks/stretch.py

For each latent the stretch of its projector, the error of its part, and that less what all tokens of a row share.
"""

from __future__ import annotations

from torch import Tensor

from qkprism.core.projectors import joint_projectors, stretch_of
from qkprism.toy import Cell, Sampling, ToyTask, train
from qkprism.toy.contrasts import recipes_of
from qkprism.toy.portrait import PAIRS
from qkprism.toy.samples import LATENTS, draw_samples
from qkprism.toy.task import stream
from qkprism.toy.truth import logit_parts

RANKS = ((4, 4), (4, 5), (5, 4), (4, 6), (6, 6), (7, 8), (4, 11), (11, 4))
CELLS = [Cell(ToyTask("discrete", *ranks), 16, seed) for seed in (0, 1) for ranks in RANKS]
CELLS += [Cell(ToyTask("continuous", *ranks), 16) for ranks in ((4, 4), (4, 6), (7, 8))]
CELLS += [Cell(ToyTask(kind, *ranks), 8) for kind in ("discrete", "continuous") for ranks in ((2, 2), (2, 3), (3, 4))]


def main() -> None:
    heads = train(CELLS)
    print(f"{'head':45s} stretch of z1, z2; error of the part, within rows, of z1 and of z2")
    for size in (16, 8):
        same_size = [head for cell, head in heads.items() if cell.d_head == size]
        recipes = recipes_of(same_size, Sampling())
        for number, head in enumerate(same_size):
            joint = joint_projectors(recipes.features(number, "contrast"))
            samples = draw_samples(head.cell.task, PAIRS, stream("parts", repr(head.cell)))
            query, key, true = head.queries(samples).double(), head.keys(samples).double(), logit_parts(head, samples)
            told = [f"{stretch_of(joint[latent]):5.1f}" for latent in LATENTS]
            for latent in LATENTS:
                off = ((key @ joint[latent].mT) @ query[:, :, None])[:, :, 0] - true[latent]
                for wrong, right in ((off, true[latent]), (_within(off), _within(true[latent]))):
                    told.append(f"{float(wrong.abs().mean() / right.abs().mean()):6.1%}")
            print(f"{head.cell!s:45s} {' '.join(told)}", flush=True)


def _within(part: Tensor) -> Tensor:
    return part - part.mean(-1, keepdim=True)


if __name__ == "__main__":
    main()
