"""A tiny real bundle, and ways to serve it in this process."""

import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from fastapi import FastAPI

from models.bundle import Bundle, add_elman, add_kenlm, create_bundle, load_bundle
from models.errors import RescoringError
from models.normaliser import Normaliser
from models.ranking import RescoredList
from models.rescoring import Rescorer
from models.rnnlm import ElmanLM, ElmanWeights, WordClasses
from models.score import Weights
from models.scored_lists import PreparedList
from models.vocabulary import Vocabulary
from service.app import create_app
from service.telemetry import make_log

WORDS = ("the", "cat", "sat", "sad", "on", "mat")
BIGRAMS = (("<s>", "the"), ("the", "cat"), ("cat", "sat"), ("sat", "on"), ("on", "the"), ("the", "mat"))
HIDDEN = 5

Before = Callable[[Sequence[PreparedList]], None]
Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


def arpa() -> str:
    unigrams = ["-2.0\t<unk>", "-99\t<s>\t-0.5", "-1.0\t</s>", *(f"-0.9\t{word}\t-0.3" for word in WORDS)]
    bigrams = [f"-0.{2 + number}\t{one} {two}" for number, (one, two) in enumerate(BIGRAMS)]
    counts = f"\\data\\\nngram 1={len(unigrams)}\nngram 2={len(bigrams)}\n"
    return "\n".join([counts, "\\1-grams:", *unigrams, "", "\\2-grams:", *bigrams, "", "\\end\\", ""])


@pytest.fixture(scope="session")
def bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    vocabulary = Vocabulary(WORDS)
    manifest = create_bundle(folder, Normaliser(), vocabulary)
    (folder / "ngram.kenlm").write_text(arpa(), encoding="utf-8")
    add_kenlm(folder, manifest, "ngram", {})
    # </s>, the rare class with <unk> and the last word, then one class for each other word.
    classes = WordClasses(torch.tensor([1, 0, 2, 3, 4, 5, 6, 1]).numpy(), 2)
    generator = torch.Generator().manual_seed(1)

    def matrix(rows: int) -> torch.Tensor:
        return torch.randn(rows, HIDDEN, generator=generator)

    network = ElmanLM(ElmanWeights(matrix(classes.count), matrix(HIDDEN), matrix(classes.count)), classes)
    add_elman(folder, manifest, "rnn", network)
    manifest.weights = Weights({"ngram": 0.5, "rnn": 0.5}, lm_scale=2.0, word_bonus=0.25, oov_bonus=-1.0)
    manifest.write(folder)
    return folder


@pytest.fixture(scope="session")
def bundle(bundle_folder: Path) -> Bundle:
    return load_bundle(bundle_folder)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class WatchedRescorer(Rescorer):
    """Scores as its parent does, after showing each batch to `before`, on the thread that scores."""

    before: Before

    def rescore(
        self, lists: Sequence[PreparedList], weights: Sequence[Weights], *, word_scores: bool = False
    ) -> list[RescoredList | RescoringError]:
        self.before(lists)
        return super().rescore(lists, weights, word_scores=word_scores)

    def rescore_carried(
        self, lists: Sequence[PreparedList], weights: Weights, *, word_scores: bool = False
    ) -> list[RescoredList | RescoringError]:
        self.before(lists)
        return super().rescore_carried(lists, weights, word_scores=word_scores)


@pytest.fixture
def watched(bundle: Bundle) -> Callable[[Before], Bundle]:
    def make(before: Before) -> Bundle:
        real = bundle.rescorer
        rescorer = WatchedRescorer(real.vocabulary, real.normaliser, real.models, real.limits)
        rescorer.before = before
        return replace(bundle, rescorer=rescorer)

    return make


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        yield client


@pytest.fixture
def log_lines() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def make_app(bundle: Bundle, log_lines: io.StringIO) -> Callable[..., FastAPI]:
    def make(served: Bundle = bundle, *arguments: Any, **options: Any) -> FastAPI:
        return create_app(served, *arguments, log=make_log(log_lines), **options)

    return make


@pytest.fixture
def serve(make_app: Callable[..., FastAPI]) -> Serve:
    """A context manager that serves a bundle in this process and gives a client of it."""

    def start(*arguments: Any, **options: Any) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        return running(make_app(*arguments, **options))

    return start


@pytest.fixture
async def client(serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    async with serve() as started:
        yield started


def request_of(*texts: str, name: str = "u1", **more: Any) -> dict[str, Any]:
    """A request with one utterance whose hypotheses have acoustic scores -10, -11, ..."""
    hypotheses = [{"text": text, "acoustic_score": -10.0 - i} for i, text in enumerate(texts)]
    return {"utterances": [{"id": name, "hypotheses": hypotheses}], **more}


@pytest.fixture
def ask() -> Callable[..., dict[str, Any]]:
    return request_of


@pytest.fixture
def ranking() -> Callable[[httpx.Response], list[Mapping[str, Any]]]:
    def read(response: httpx.Response) -> list[Mapping[str, Any]]:
        assert response.status_code == 200, response.text
        entries: list[Mapping[str, Any]] = response.json()["results"][0]["ranking"]
        return entries

    return read
