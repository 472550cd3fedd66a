"""Writes the OpenAPI document: python -m service.openapi docs/openapi.json."""

import sys
from pathlib import Path

import orjson

from models.bundle import Bundle, Manifest
from models.normaliser import Normaliser
from models.rescoring import Rescorer
from models.score import Weights
from models.vocabulary import Vocabulary
from service.app import create_app, openapi


def render() -> str:
    """The document as it stands in docs/openapi.json; it is the same for every bundle."""
    normaliser, vocabulary = Normaliser(), Vocabulary(("word",))
    nothing = Bundle(
        Path(),
        Manifest(normaliser, vocabulary.sha256),
        Rescorer(vocabulary, normaliser, {}),
        Weights({"none": 1.0}),
        "",
    )
    document = openapi(create_app(nothing))
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
