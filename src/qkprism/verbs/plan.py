"""`EditPlan`: what `intervene` edits, in which texts: two keys of each example, under every condition of every head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from torch import Tensor

from qkprism.capture.source import Site, sites_of
from qkprism.contrasts import Contrast
from qkprism.core.edits import Edit
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.encoding import EncodedExample
from qkprism.options import Outcome
from qkprism.results.features import Features
from qkprism.subspaces.comparison import Comparison, methods_of
from qkprism.subspaces.conditions import Conditions, layer_conditions
from qkprism.verbs.aims import Aims, all_aims
from qkprism.verbs.inputs import (
    AnySource,
    Examples,
    Heads,
    KeptExamples,
    encode_like,
    heads_with_features,
    provenance_of_run,
)


@dataclass(frozen=True)
class EditPlan:
    """The edits of one set of features, and the texts they are made in."""

    encoded: Sequence[EncodedExample]
    aims: Mapping[str, Aims]
    sites: Mapping[int, Site]
    conditions: Mapping[Head, Conditions]
    edit: Edit
    outcome: Outcome
    encoding: Encoding
    provenance: Mapping[str, object]

    @classmethod
    def of(
        cls,
        model: AnySource,
        examples: Examples | KeptExamples,
        features: Features,
        compare: Comparison,
        *,
        heads: Heads = None,
        edit: Edit = Edit(),  # noqa: B008  (it is frozen)
        outcome: Outcome = Outcome(),  # noqa: B008
    ) -> EditPlan:
        """Check that the edits are possible, and draw their controls."""
        chosen = heads_with_features(model, features, heads)
        _check_edit(edit, features, chosen)
        encoded = encode_like(model, examples, features, chosen)
        sites = sites_of(model, chosen)
        conditions = conditions_of(features, sites, compare, edit)
        provenance = {
            **provenance_of_run(model, features),
            "contrast": examples.name if isinstance(examples, Contrast) else None,
            "edit": {"kind": edit.kind, "side": edit.side, "amount": edit.amount, "direction": edit.direction},
            "vectors": {str(head): _digest(edit.vector_of(head)) for head in chosen},
            "methods": list(methods_of(features, compare.methods, swaps=edit.kind == "swap")),
            "outcome": outcome.kind,
            "together": outcome.together,
            "rows": outcome.rows,
            "draws": compare.draws,
            "labels": compare.labels,
            "item": compare.item,
            "seed": compare.seed,
            "groups": compare.groups,
            "heads": list(map(str, chosen)),
        }
        aims = all_aims(encoded, features, compare)
        return cls(encoded, aims, sites, conditions, edit, outcome, features.encoding, provenance)

    @property
    def notes(self) -> list[str]:
        """What is to be said of the conditions."""
        return [note for conditions in self.conditions.values() for note in conditions.notes]


def conditions_of(
    features: Features,
    sites: Mapping[int, Site],
    compare: Comparison,
    edit: Edit = Edit(),  # noqa: B008  (it is frozen)
) -> dict[Head, Conditions]:
    """The conditions of every chosen head, in one order for all of them."""
    methods = methods_of(features, compare.methods, swaps=edit.kind == "swap")
    whole = not edit.follows_subspace  # the whole key has no direction of its own
    found: dict[Head, Conditions] = {}
    for number, site in sites.items():
        of_layer = layer_conditions(
            features, number, methods,
            heads=site.heads, draws=compare.draws, seed=compare.seed, whole=whole, groups=compare.groups,
        )  # fmt: skip
        found |= {head: of_layer[head] for head in site.heads}
    return found


def _digest(vector: Tensor | None) -> str:
    """By which a job that goes on knows the vector of its edit."""
    return (
        "" if vector is None else blake2b(vector.detach().cpu().double().numpy().tobytes(), digest_size=8).hexdigest()
    )


def _check_edit(edit: Edit, features: Features, heads: Sequence[Head]) -> None:
    """The direction and the vectors of an edit must exist in every head."""
    for feature in (features[name, head] for name in features.contrasts for head in heads):
        if edit.follows_subspace and edit.direction >= feature.rank:
            raise QKPrismError(
                f"direction={edit.direction} is not in {feature.contrast!r} of {feature.head} (rank {feature.rank})."
            )
        vector = edit.vector_of(feature.head)
        if vector is not None and vector.shape != (feature.d_head,):
            raise QKPrismError(
                f"The vector of the edit has {len(vector)} numbers; {feature.head} needs {feature.d_head}."
            )
