"""What a session is and does, over HTTP: compared with a SessionModel that is fed the same texts by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import TypeAdapter

from models.bundle import Bundle
from models.learning import LearningOptions
from models.nbest import Hypothesis, NBest
from service import openapi_sessions
from service.session_schemas import SessionAnswer, SessionDescription

pytestmark = pytest.mark.anyio

Serve = Callable[..., Any]
Talk = Any
Reference = Any
CAT, MAT = ("the cat sad", "the cat sat"), ("on the mat", "on a mat", "on the map")


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


async def test_a_new_session_is_described_with_all_its_options(talk: Talk, client: httpx.AsyncClient) -> None:
    made = await talk.make()
    TypeAdapter(SessionDescription).validate_python(made)
    paper = {"state": "carried", "weights": "dynamic", "learn_from": "winner", "rate": 0.1, "tau": 1, "decay": 0.0}
    assert made["options"] == {**paper, "max_loss_rise": 0.5}
    assert made["rescoring"] == (await client.get("/v1/models")).json()["weights"]
    assert (made["id"], made["version"], made["utterances"], made["words_learnt"]) == ("talk", 0, 0, 0)
    nothing = {"session": None, "static": None, "events": 0}
    assert made["perplexity"] == {"ngram": nothing, "rnn": nothing, "mixture": nothing}
    assert await talk.described() == made


async def test_what_a_session_does_not_say_of_learning_is_as_the_bundle_was_tuned(serve: Serve, bundle: Bundle) -> None:
    tuned = replace(bundle, manifest=replace(bundle.manifest, learning=LearningOptions(0.02, 3)))
    async with serve(tuned) as client:
        for options, rate in (({}, 0.02), ({"rate": 0.5}, 0.5)):
            made = (await client.post("/v1/sessions", json={"options": options})).json()["options"]
            assert (made["rate"], made["tau"]) == (rate, 3)


async def test_a_session_without_a_name_is_given_one(client: httpx.AsyncClient) -> None:
    made = [await client.post("/v1/sessions") for _ in range(2)]
    names = {response.json()["id"] for response in made}
    assert len(names) == 2
    for response in made:
        assert (await client.get(response.headers["location"])).json() == response.json()


async def test_an_utterance_is_ranked_from_the_sessions_state_and_its_winner_is_learnt(
    talk: Talk, reference: Callable[..., Reference]
) -> None:
    model = reference()
    await talk.make()
    first = await talk.said("u1", *CAT)
    TypeAdapter(SessionAnswer).validate_python(first)
    assert first["lesson"] == {"learnt": True, "words": 4, "undone": False}
    second = await talk.said("u2", *MAT, word_scores=True)
    texts = [(answer["result"]["best_text"], False) for answer in (first, second)]
    assert model.bits_of(await talk.exported()) == model.bits(*texts)
    state = model.after(texts[0])
    lists = [model.rescorer.prepare(nbest_of(*MAT))]
    (expected,) = model.model.rescore(lists, [state], word_scores=True)
    assert [entry["total"] for entry in second["result"]["ranking"]] == [h.total for h in expected.ranking]


def nbest_of(*texts: str) -> NBest:
    return NBest("u", tuple(Hypothesis(text, -10.0 - number) for number, text in enumerate(texts)))


async def test_the_description_says_what_was_learnt_and_whether_it_helped(
    talk: Talk, reference: Callable[..., Reference]
) -> None:
    await talk.make()
    texts = [((await talk.said(f"u{i}", "the cat sat"))["result"]["best_text"], False) for i in range(5)]
    described = await talk.described()
    state = reference().after(*texts)
    assert (described["version"], described["utterances"], described["words_learnt"]) == (5, 5, 20)
    assert (described["rank"], described["bytes"]) == (state.rank, state.bytes)
    for name, perplexity in described["perplexity"].items():
        assert perplexity["events"] == 20
        assert (perplexity["session"], perplexity["static"]) == state.tallies[name].perplexities()
    # Five times the same words: a network that learns must come to expect them.
    assert described["perplexity"]["rnn"]["session"] < described["perplexity"]["rnn"]["static"]


async def test_the_same_request_again_gets_the_same_answer_and_teaches_nothing(talk: Talk) -> None:
    await talk.make()
    first = await talk.said("u1", *CAT, word_scores=True)
    await talk.said("u2", *MAT)
    before = await talk.exported()
    again = await talk.said("u1", *CAT, word_scores=True, log_base="e")
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert without(again, "repeated") == without(first, "repeated")
    assert await talk.exported() == before


async def test_a_confirmed_text_counts_as_if_it_had_been_learnt_instead(
    talk: Talk, reference: Callable[..., Reference]
) -> None:
    model = reference()
    await talk.make()
    winners = [(await talk.said(f"u{i}", *MAT))["result"]["best_text"] for i in range(4)]
    described = await talk.confirmed("u1", "The cat sat.")
    assert (described["version"], described["utterances"]) == (5, 4)
    texts = [(text, False) for text in winners]
    texts[1] = ("the cat sat", True)
    assert model.bits_of(await talk.exported()) == model.bits(*texts)
    await talk.confirmed("u3", "")
    texts[3] = ("", True)
    assert model.bits_of(await talk.exported()) == model.bits(*texts)


async def test_the_same_text_confirmed_again_changes_nothing(talk: Talk) -> None:
    await talk.make()
    await talk.said("u1", *CAT)
    once = await talk.confirmed("u1", "the cat sat on the mat")
    assert await talk.confirmed("u1", "the  cat sat, on the mat") == once


async def test_a_session_that_learns_from_confirmed_texts_alone(
    talk: Talk, reference: Callable[..., Reference]
) -> None:
    model = reference(learn_from="confirmed")
    await talk.make(options={"learn_from": "confirmed"})
    answer = await talk.said("u1", "the cat sat")
    assert answer["lesson"] == {"learnt": False, "words": 0, "undone": False}
    assert (await talk.confirmed("u1", "the cat sat"))["words_learnt"] == 4
    assert model.bits_of(await talk.exported()) == model.bits(("the cat sat", True))


@pytest.mark.parametrize(
    "options",
    [{"state": "reset"}, {"weights": "static"}, {"learn_from": "nothing"}, {"max_loss_rise": 0.0}],
    ids=lambda options: next(iter(options)),
)
async def test_every_switch_is_heeded(talk: Talk, reference: Callable[..., Reference], options: dict[str, Any]) -> None:
    model = reference(**options)
    await talk.make(options=options)
    texts = [((await talk.said(f"u{i}", *lists))["result"]["best_text"], False) for i, lists in enumerate((CAT, MAT))]
    assert model.bits_of(await talk.exported()) == model.bits(*texts)


async def test_a_static_session_that_was_reset_scores_as_outside_sessions_bit_for_bit(
    talk: Talk, client: httpx.AsyncClient, ask: Callable[..., dict[str, Any]]
) -> None:
    await talk.make(options={"weights": "static"})
    for number in range(3):
        await talk.said(f"u{number}", *MAT)
    await talk.reset()
    outside = await client.post("/v1/rescore", json=ask(*CAT, name="u1"))
    assert (await talk.said("u1", *CAT))["result"] == outside.json()["results"][0]


async def test_a_session_that_was_reset_is_as_a_new_one_bit_for_bit(talk: Talk, talks: type[Talk]) -> None:
    await talk.make()
    for number in range(3):
        await talk.said(f"u{number}", *MAT)
    described = await talk.reset()
    assert (described["version"], described["utterances"], described["rank"]) == (4, 0, 0)
    fresh = talks(talk.client, "fresh")
    await fresh.make()
    for number in range(3):
        one, other = await talk.said(f"u{number}", *CAT), await fresh.said(f"u{number}", *CAT)
        assert not one["repeated"]
        assert one["result"] == other["result"]
    both = [without(await t.described(), "id", "version", "created", "used") for t in (talk, fresh)]
    assert both[0] == both[1]


async def test_a_forked_session_is_the_same_and_then_its_own(talk: Talk, reference: Callable[..., Reference]) -> None:
    model = reference()
    await talk.make(options={"rate": 0.1}, rescoring={"lm_scale": 3.0})
    first = await talk.said("u1", *CAT)
    other = await talk.fork("other")
    assert await talk.exported() == await other.exported()
    same = ("version", "options", "rescoring", "utterances", "words_learnt", "perplexity")
    one, copy = [await t.described() for t in (talk, other)]
    assert {name: one[name] for name in same} == {name: copy[name] for name in same}
    assert await other.said("u1", *CAT) == {**first, "session": "other", "repeated": True}
    before = await talk.exported()
    await other.said("u2", *MAT)
    await other.confirmed("u1", "a mat")
    assert await talk.exported() == before
    await talk.said("u2", "the mat")
    assert model.bits_of(await talk.exported()) == model.bits((first["result"]["best_text"], False), ("the mat", False))


async def test_an_exported_session_comes_back_under_another_name(talk: Talk, talks: type[Talk]) -> None:
    await talk.make(options={"tau": 2}, rescoring={"interpolation": {"rnn": 1.0}})
    first = await talk.said("u1", *CAT)
    await talk.said("u2", *MAT)
    await talk.confirmed("u2", "on the mat")
    exported = await talk.exported()
    response = await talk.client.post("/v1/sessions/import?id=copy", content=exported)
    assert response.status_code == 201, response.text
    assert response.headers["location"] == "/v1/sessions/copy"
    copy = talks(talk.client, "copy")
    assert await copy.exported() == exported
    assert without(await copy.described(), "id", "created", "used") == without(
        await talk.described(), "id", "created", "used"
    )
    assert await copy.said("u1", *CAT) == {**first, "session": "copy", "repeated": True}
    assert (await copy.said("u3", *CAT))["result"] == (await talk.said("u3", *CAT))["result"]
    assert await copy.confirmed("u3", "") != await talk.described()
    await talk.confirmed("u3", "")
    assert await copy.exported() == await talk.exported()


async def test_a_deleted_session_is_gone_and_its_name_may_be_used_anew(talk: Talk) -> None:
    await talk.make()
    await talk.said("u1", *CAT)
    response = await talk.client.delete(talk.path)
    assert (response.status_code, response.content) == (204, b"")
    gone = await talk.client.get(talk.path)
    assert (gone.status_code, gone.json()["type"]) == (410, "/problems/session-deleted")
    await talk.make()
    assert (await talk.said("u1", *MAT))["version"] == 1


@pytest.mark.parametrize("name", ["utt-1", "a/b", "ü ñ", "..", "x/transcript", "new\nline", "%2F", "?&#"])
async def test_an_utterance_may_be_called_anything(talk: Talk, name: str) -> None:
    await talk.make()
    await talk.said(name, *CAT)
    response = await talk.client.put(
        f"{talk.path}/utterances/{quote(name, safe='')}/transcript".replace("/../", "/%2e%2e/"), json={"text": "mat"}
    )
    assert response.status_code == 200, response.text
    assert response.json()["version"] == 2


async def test_labels_references_and_log10_pass_as_outside_sessions(talk: Talk, client: httpx.AsyncClient) -> None:
    entry = {
        "id": "u1",
        "reference": "The cat sat.",
        "speaker": "s",
        "session_id": "x",
        "hypotheses": [{"text": "the cat", "acoustic_score": -1.0, "lm_score": -2.0}],
    }
    await talk.make(options={"weights": "static"})
    inside = await client.post(f"{talk.path}/rescore", json={"utterance": entry, "log_base": "10"})
    outside = await client.post("/v1/rescore", json={"utterances": [entry], "log_base": "10"})
    assert inside.json()["result"] == outside.json()["results"][0]


class TestDocumentation:
    @pytest.mark.parametrize(
        ("kind", "example"),
        [
            (SessionDescription, openapi_sessions.DESCRIPTION_EXAMPLE),
            (SessionAnswer, openapi_sessions.RESCORED_EXAMPLE),
        ],
    )
    def test_an_answers_example_is_one(self, kind: Any, example: dict[str, Any]) -> None:
        TypeAdapter(kind).validate_python(example)

    async def test_the_requests_examples_are_answered(self, client: httpx.AsyncClient) -> None:
        example = {**openapi_sessions.CREATE_EXAMPLE}
        assert (await client.post("/v1/sessions", json=example)).status_code == 201
        path = f"/v1/sessions/{example['id']}"
        rescored = await client.post(f"{path}/rescore", json=openapi_sessions.RESCORE_EXAMPLE)
        assert rescored.status_code == 200
