import threading

import pytest
import torch

from models.threads import one_thread_an_operation, share_out


@pytest.fixture(autouse=True)
def three_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_every_piece_is_worked_on_once() -> None:
    done: list[int] = []
    share_out(done.append, range(1000))
    assert sorted(done) == list(range(1000))


def test_as_many_threads_as_torch_is_set_to_work_at_once() -> None:
    # Nobody passes the barrier before three are there.
    barrier = threading.Barrier(3, timeout=10)
    names: set[str] = set()

    def work(_: int) -> None:
        barrier.wait()
        names.add(threading.current_thread().name)

    share_out(work, range(3))
    assert len(names) == 3


def test_each_thread_runs_torch_by_itself_and_outside_nothing_has_changed() -> None:
    counts: list[int] = []
    share_out(lambda _: counts.append(torch.get_num_threads()), range(9))
    assert (counts, torch.get_num_threads()) == ([1] * 9, 3)


def test_a_block_inside_a_block_knows_the_count_outside_of_both() -> None:
    with one_thread_an_operation() as outer:
        with one_thread_an_operation() as inner:
            pass
        assert torch.get_num_threads() == 1
    assert (outer, inner, torch.get_num_threads()) == (3, 3, 3)


def test_what_fails_in_any_thread_reaches_the_caller() -> None:
    def fail(piece: int) -> None:
        if piece == 50:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        share_out(fail, range(100))
    assert torch.get_num_threads() == 3


def test_threads_that_share_out_at_once_wait_for_one_another() -> None:
    done: list[int] = []
    callers = [threading.Thread(target=share_out, args=(done.append, range(200))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(10)
    assert sorted(done) == sorted([*range(200)] * 4)
    assert torch.get_num_threads() == 3
