import pytest
import torch

from vitreous.fitting.threads import settled


@pytest.fixture
def eight():
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({8: 1.0, 4: 1.8, 2: 3.5, 1: 7.0}, 8),
        ({8: 9.0, 4: 6.0, 2: 3.5, 1: 2.0}, 1),
        ({8: 5.0, 4: 2.0, 2: 1.9, 1: 3.5}, 4),
    ],
)
def test_as_many_as_help(seconds, expected, eight):
    assert settled(seconds.__getitem__) == expected == torch.get_num_threads()


def test_one_thread_is_not_asked_about(eight):
    torch.set_num_threads(1)
    assert settled({}.__getitem__) == 1


def test_measuring_draws_no_random_numbers(eight):
    state = torch.get_rng_state()
    assert settled() in (1, 2, 4, 8)
    assert torch.equal(torch.get_rng_state(), state)
