"""One table says which error is which problem."""

from collections.abc import Iterator

import orjson
import pytest
from starlette.exceptions import HTTPException

from models.errors import InvalidNBestError, ModelFailedError, RescoringError
from service import problems
from service.errors import FieldError, InvalidRequestError, QueueFullError, RefusedListError, ServiceError


def descendants(kind: type[Exception]) -> Iterator[type[Exception]]:
    for child in kind.__subclasses__():
        # Only the packages' own: other tests make subclasses too.
        if child.__module__ in {"models.errors", "service.errors"}:
            yield child
            yield from descendants(child)


def test_every_domain_error_has_a_kind_of_problem() -> None:
    assert {*descendants(RescoringError), *descendants(ServiceError)} == set(problems.KINDS)


def test_no_two_errors_share_a_name() -> None:
    names = [kind.name for kind in problems.KINDS.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", problems.KINDS.values(), ids=lambda kind: kind.name)
def test_every_problem_is_an_error_status(kind: problems.Kind) -> None:
    assert 400 <= kind.status < 600


def test_an_error_outside_the_table_is_internal_and_says_nothing_of_itself() -> None:
    response = problems.response(ZeroDivisionError("secret"))
    assert response.status_code == 500
    assert b"secret" not in bytes(response.body)


def test_a_subclass_nobody_listed_is_answered_as_its_parent() -> None:
    class StrangeListError(InvalidNBestError):
        pass

    assert problems.response(StrangeListError("x")).status_code == 422


def test_a_refused_list_is_answered_as_its_cause_with_its_field() -> None:
    field = FieldError("utterances[0].hypotheses[3].text", "no", "u")
    body = orjson.loads(problems.response(RefusedListError(InvalidNBestError("no"), [field])).body)
    assert body["type"] == "/problems/invalid-nbest"
    assert body["errors"] == [{"field": field.field, "utterance": "u", "message": "no"}]


@pytest.mark.parametrize("error", [ModelFailedError("x"), QueueFullError("x", retry_after_s=7)])
def test_what_may_be_tried_again_says_when(error: Exception) -> None:
    assert int(problems.response(error).headers["retry-after"]) >= 1


def test_a_list_of_errors_is_capped() -> None:
    many = [FieldError(str(number), "no") for number in range(1000)]
    body = orjson.loads(problems.response(InvalidRequestError("no", errors=many)).body)
    assert len(body["errors"]) == problems.MAX_ERRORS


def test_a_detail_is_cut_short() -> None:
    assert len(bytes(problems.response(InvalidRequestError("x" * 100_000)).body)) < 2_000


def test_starlettes_own_errors_take_the_same_shape_and_keep_their_headers() -> None:
    response = problems.response(HTTPException(405, headers={"allow": "GET"}))
    assert orjson.loads(response.body)["type"] == "/problems/method-not-allowed"
    assert response.headers["allow"] == "GET"
