"""Who gets which turn, and how many cores with it."""

import threading

import pytest
import torch

from vitreous.serve.served import Served, open_served
from vitreous.serve.worker import Inbox, Job, Spare, Turn


def inbox(*kinds: str, lanes: int = 2) -> Inbox:
    """Jobs 0, 1, 2... of these kinds, all ready."""
    found = Inbox()
    found.lanes = lanes
    for number, kind in enumerate(kinds):
        add(found, number, kind)
    return found


def add(found: Inbox, number: int, kind: str = "predict") -> None:
    job = Job(number, kind, {}, b"")
    found.expect(job)
    found.put(job)


def numbers(turn: Turn) -> list[int]:
    assert isinstance(turn.work, list)
    return [job.number for job in turn.work]


def has_none(found: Inbox, max_batch: int = 4) -> bool:
    with found.changed:
        return found._next(max_batch) is None


def test_one_that_is_alone_gets_all_cores():
    found = inbox("predict")
    turn = found.take(4)
    assert (numbers(turn), turn.lanes) == ([0], 1)
    add(found, 1)
    assert has_none(found)  # or the two would wait for each other at every step
    found.finish()
    assert numbers(found.take(4)) == [1]


def test_lanes_take_one_by_one_and_in_batches_where_many_wait():
    found = inbox(*["predict"] * 5)
    first, second = found.take(16), found.take(16)
    assert (numbers(first), first.lanes) == ([0], 2)
    assert (numbers(second), second.lanes) == ([1], 2)
    for number in range(5, 16):
        add(found, number)
    assert has_none(found)
    found.finish()
    assert numbers(found.take(16)) == [2, 3, 4, 5]  # of 14: as many again are left for each lane


def test_one_lane_takes_all_there_is():
    found = inbox(*["predict"] * 5)
    found.lanes = 1
    assert numbers(found.take(16)) == [0, 1, 2, 3, 4]


def test_a_batch_is_no_larger_than_allowed():
    found = inbox(*["predict"] * 14)
    assert [numbers(found.take(2)), numbers(found.take(2))] == [[0, 1], [2, 3]]


def test_one_still_being_decoded_counts():
    found = inbox("predict")
    found.expect(Job(1, "predict", {}, b""))
    assert found.take(4).lanes == 2


def test_a_batch_is_of_one_kind():
    found = inbox("predict", "embed", "predict", "embed", lanes=1)
    turns = []
    for _ in range(2):
        turns.append(numbers(found.take(16)))
        found.finish()
    assert turns == [[0, 2], [1, 3]]


def test_attention_has_the_model_to_itself_and_is_not_overtaken():
    found = inbox("predict", "predict", "attention", "predict")
    found.take(1)
    found.take(1)
    found.finish()
    assert has_none(found)  # another lane still runs
    found.finish()
    turn = found.take(4)
    assert (numbers(turn), turn.lanes) == ([2], 1)
    assert has_none(found)
    found.finish()
    assert numbers(found.take(4)) == [3]


def test_training_pictures_wait_until_nobody_asks():
    found = inbox("predict")
    found.put_spare(Spare(7, "a", "", None))
    found.take(4)
    assert has_none(found)
    found.finish()
    turn = found.take(4)
    assert isinstance(turn.work, Spare)
    assert turn.lanes == 1
    found.finish()
    assert has_none(found)


def test_what_was_taken_back_gets_no_turn():
    found = inbox("predict", "predict")
    assert found.forget(0)
    assert numbers(found.take(4)) == [1]
    assert not found.forget(1)


def test_a_lane_waits_for_its_turn():
    found = inbox()
    taken = []
    lanes = [threading.Thread(target=lambda: taken.append(found.take(1))) for _ in range(2)]
    for lane in lanes:
        lane.start()
    found.expect(Job(1, "predict", {}, b""))
    add(found, 0)
    found.put(found.known[1])
    for lane in lanes:
        lane.join(20)
    assert sorted(number for turn in taken for number in numbers(turn)) == [0, 1]


@pytest.mark.parametrize(("threads", "lanes"), [(1, 1), (2, 2), (8, 2)])
def test_lanes_of_a_cpu_share_its_cores(model, threads, lanes):
    served = open_served(str(model), "cpu", threads)
    assert (served.lanes, served.max_batch, served.queue) == (lanes, 4, 6)
    assert (Served.lanes, Served.max_batch, Served.queue) == (1, 16, 32)  # of a GPU
    before, seen = torch.get_num_threads(), []

    def lane() -> None:
        for num in (1, lanes):
            served.take_cores(num)
            seen.append(torch.get_num_threads())

    thread = threading.Thread(target=lane)
    thread.start()
    thread.join()
    assert seen == [threads, threads // lanes]
    assert torch.get_num_threads() == before  # of this thread
