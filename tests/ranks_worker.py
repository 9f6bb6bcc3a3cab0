"""What several processes do together in `test_ranks.py`: every verb on a tiny model; one process does the same alone.

python ranks_worker.py FAMILY FEATURES OUT          # or under torchrun, with the features that one process found
torchrun ... ranks_worker.py FOLDER FEATURES OUT tp # the model of a folder, its heads split over the processes
"""

import sys
from pathlib import Path

import torch
from torch import distributed

import qkprism as qk
from qkprism.capture import streaming
from qkprism.contrasts import Contrast
from qkprism.ranks import is_first, join, processes
from test_intervene import HEADS, load
from test_intervene import contrasts as pair_contrasts
from test_pipeline import contrast
from test_validate import pairs

CHUNK = 8


def sums_of(features):
    """All sums behind features by name."""
    return {
        f"{layer}/{name}/{field}": tensor
        for layer, moments in features.layers.items()
        for name, total in moments.moments.items()
        for field, tensor in total.tensors().items()
    }


def decomposed(model, contrasts, **options):
    """Sums, and what follows from them."""
    features = qk.decompose(model, contrasts, recipe=qk.Recipe(metric="raw"), progress=False, **options)
    bases = {f"{name} {head}": feature.covariance for (name, head), feature in features.items()}
    return {"sums": sums_of(features), "covariance": bases, "n": [feature.n for feature in features.values()]}


def numbers(frame):
    return torch.tensor(frame.select_dtypes("number").to_numpy(dtype=float))


def everything(model, place):
    """What every verb finds; all of it tensors or lists."""
    whole = contrast(30, seed=1)
    several = {"a": whole, "b": contrast(30, twins=True, seed=2), "part": Contrast("part", tuple(whole[:5]))}
    if not Path(place).is_dir():
        qk.decompose(model, pair_contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False).save(place)
    features = qk.Features.load(place)
    test = contrast(21, seed=5)
    options = {"compare": qk.Comparison(draws=2), "batch_size": 4, "progress": False}
    scores = qk.find_heads(model, test, batch_size=4, progress=False)
    effects = qk.intervene(model, test, features, **options)
    outcome = qk.intervene(model, test, features, outcome="logits", **options)
    checked = qk.validate(model, pairs(), features, batch_size=4, progress=False)
    why = qk.attribute(model, test, features, batch_size=4, progress=False)
    seen = qk.project(model, test, features, batch_size=4, progress=False)
    return {
        "decompose": decomposed(model, several),
        "few": decomposed(model, Contrast("few", tuple(whole[:2]))),
        "heads": [str(head) for head in scores.heads],
        "read": {
            "scores": numbers(scores.to_frame()),
            "effects": numbers(effects.to_frame()),
            "logits": numbers(outcome.to_frame()),
            "validation": numbers(checked.to_frame()),
            "attributions": why.values["gap"],
            **{f"query {head}": values for head, values in seen.query.items()},
        },
    }


def main(family, place, out, device_map=None):
    join()
    torch.set_num_threads(1)
    streaming.CHUNK["cpu"] = CHUNK
    found = everything(qk.load(family, device_map=device_map) if device_map else load(family), place)
    if processes() > 1:
        every = [None] * processes()
        distributed.all_gather_object(every, repr_of(found))
        assert len(set(every)) == 1, "the processes found different things"
    if is_first():
        torch.save(found, Path(out))


def repr_of(found):
    """All bits of what was found, in one string."""
    if isinstance(found, torch.Tensor):
        return found.contiguous().numpy().tobytes().hex()
    if isinstance(found, dict):
        return str({name: repr_of(value) for name, value in found.items()})
    return repr(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
