"""Writes boxes.jsonl, the example contrast: which box holds the object that is asked for?

python examples/make_boxes.py > examples/boxes.jsonl
"""

import json
import random

OBJECTS = [
    "hat",
    "jam",
    "pen",
    "cup",
    "key",
    "map",
    "ring",
    "coin",
    "book",
    "lamp",
    "bell",
    "rope",
    "drum",
    "fork",
    "shoe",
    "vase",
    "clock",
    "knife",
    "flute",
    "candle",
]
BOXES = "ABCDEFGHJKLMNOPQRSTUVWXYZ"


def example(rng: random.Random, n_pairs: int = 6) -> dict:
    objects, boxes, asked = rng.sample(OBJECTS, n_pairs), rng.sample(BOXES, n_pairs), rng.randrange(n_pairs)
    text, sides = "", {"positive": [], "negative": []}
    for order, (thing, box) in enumerate(zip(objects, boxes, strict=True)):
        text += f"{'The' if order == 0 else ' the'} {thing} is in Box {box}{',' if order < n_pairs - 1 else '.'}"
        span = [len(text) - 2, len(text) - 1]
        key = {"span": span, "labels": {"order": order, "object": thing}}
        sides["positive" if order == asked else "negative"].append(key)
    text += f" The {objects[asked]} is in Box"
    return {"text": text, **sides, "labels": {"object": objects[asked], "order": asked}}


if __name__ == "__main__":
    print(json.dumps({"contrast": "boxes", "description": "which box holds the object that is asked for"}))
    rng = random.Random(0)
    for _ in range(320):
        print(json.dumps(example(rng)))
