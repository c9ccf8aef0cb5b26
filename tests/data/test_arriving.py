import torch

from vitreous.data.arriving import Arriving


def test_all_arrive_in_order_one_read_ahead():
    read = []

    def found():
        for number in range(4):
            read.append(number)
            yield torch.full((2,), number), torch.ones(1)

    for number, (given, (values, _)) in enumerate(Arriving(torch.device("cpu")).one_ahead(found())):
        assert values.tolist() == [number, number] and given[0].tolist() == [number, number]
        assert read[-1] == min(number + 1, 3)


def test_nothing_comes_of_nothing():
    assert list(Arriving(torch.device("cpu")).one_ahead(iter(()))) == []
