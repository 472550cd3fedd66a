"""Bodies read piece by piece mean what they mean as a whole."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service import request_reader
from service.errors import InvalidRequestError, NotJSONError
from service.json_pieces import cut
from service.request_reader import RequestReader
from service.schemas import RescoreRequest, Utterance, unknown_fields

WHOLE = RequestReader(RescoreRequest, unknown_fields)
BY_PARTS = RequestReader(RescoreRequest, unknown_fields, ("utterances", Utterance))

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\{}[],: é\n', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(alphabet='ab"\\{}[]', max_size=4), values, max_size=4)


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "_LARGE_BYTES", 0)


@settings(max_examples=40)
@given(st.lists(objects, min_size=1, max_size=5), objects, objects, st.sampled_from([None, 1]), st.booleans())
def test_pieces_put_together_are_the_body(
    items: list[Any], before: dict[str, Any], after: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    document = {**before, "field": items, **{f"after {name}": value for name, value in after.items()}}
    pieces = cut(json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode(), "field")
    assert pieces is not None
    assert [json.loads(item) for item in pieces.items] == items
    assert json.loads(pieces.frame) == {**document, "field": items[:1]}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"field": []}',
        '{"field": {}}',
        '{"field": [1]}',
        '{"field": [{}, 1, {}]}',
        '{"field": [{} {}]}',
        '{"field": [{},, {}]}',
        '{"field": [, {}]}',
        '{"field": [{}, ]}',
        '{"field": [{}',
        '{"field": [{}], "field": [{}]}',
        '{"a": {"field": [{}]}}',
        '["field", [{}]]',
        '{"field": [[{}]]}',
        '{"a": "field", "b": [{}]}',
    ],
)
def test_what_is_no_plain_array_of_objects_is_left_whole(body: str) -> None:
    assert cut(body.encode(), "field") is None


def request(*texts: str, **more: Any) -> dict[str, Any]:
    utterances = [{"id": f"u{i}", "hypotheses": [{"text": t, "acoustic_score": -1.5}]} for i, t in enumerate(texts)]
    return {"utterances": utterances, **more}


@pytest.mark.parametrize("document", [request("a"), request("a", 'b "}]', "", options={"lm_scale": 2.0}, compact=True)])
def test_a_request_read_by_parts_is_the_request(document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    assert BY_PARTS.read(body) == WHOLE.read(body) == document


def broken(**changes: Any) -> dict[str, Any]:
    document = request("a", "b", "c")
    document["utterances"][1]["hypotheses"][0] |= changes
    return document


@pytest.mark.parametrize(
    "document",
    [
        broken(acoustic_score="1.0"),
        broken(acoustic_score=True),
        broken(text=None),
        broken(surprise=1),
        request("a", "b", surprise=1),
        request("a", "b", options={"lm_scale": "x"}),
        {"utterances": [{"id": "u", "hypotheses": []}, request("a")["utterances"][0]]},
        {"utterances": [request("a")["utterances"][0], {"id": "u"}]},
        {"utterances": [request("a")["utterances"][0], 7]},
        {"utterances": []},
        {},
    ],
)
def test_what_is_wrong_is_said_as_of_the_whole(document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    refusals = []
    for reader in (BY_PARTS, WHOLE):
        with pytest.raises(InvalidRequestError) as caught:
            reader.read(body)
        refusals.append((str(caught.value), caught.value.errors))
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize("cut_off", range(1, 120, 7))
def test_a_body_that_ends_early_is_no_json_either_way(cut_off: int) -> None:
    body = json.dumps(request("a", "b")).encode()[:-cut_off]
    for reader in (BY_PARTS, WHOLE):
        with pytest.raises(NotJSONError):
            reader.read(body)


def test_too_many_utterances_are_refused_as_ever() -> None:
    body = json.dumps(request(*["a"] * 1001)).encode()
    with pytest.raises(InvalidRequestError, match="1000"):
        BY_PARTS.read(body)
