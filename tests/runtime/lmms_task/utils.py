"""What the tasks of this folder ask of a line of sheets.jsonl."""

from PIL import Image

from seer_dllm.metrics import exact


def pictures(doc):
    return [Image.open(doc["image"])]


def scores(doc, results):
    return {"exact": exact(results[0], (doc["answer"],))}
