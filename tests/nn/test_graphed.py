"""Forward passes that are recorded. Which batches go into which graph is tried here with recordings that run the pass
again on their own buffers, as a replay does; CUDA graphs themselves on a GPU, in test_graphed_gpu."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from vitreous.models import ViTSettings
from vitreous.nn import graphed
from vitreous.nn.graphed import Graphed, mapped
from vitreous.nn.half import CastOnce
from vitreous.tasks.classify import ClassifySettings
from vitreous.tasks.detect import DetectSettings


@dataclass(frozen=True)
class Found:
    sums: torch.Tensor
    none: None = None
    many: bool = True


def sums(module, x, extent=None):
    return Found(module(x).sum(dim=1) + (0 if extent is None else extent))


@pytest.fixture
def recordings(monkeypatch):
    """The batch sizes that were recorded, in order."""
    made = []

    def recorded(run, pool):
        found = run()
        made.append(len(found.sums))

        def replay():
            found.sums.copy_(run().sums)

        return replay, found

    monkeypatch.setattr(graphed, "recorded", recorded)
    monkeypatch.setattr(graphed, "_on_the_side", lambda run: run())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(graphed, "waits_of", lambda run, inputs: run() or [])
    monkeypatch.setattr(graphed, "abandon", lambda device, pool: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(Graphed, "_is_on_gpu", lambda self, first: True)
    with torch.no_grad():
        yield made


def batch(num):
    return torch.randn(num, 4)


def test_a_size_is_recorded_once_it_comes_again(recordings):
    forward = Graphed(nn.Identity().eval(), sums)
    for count in range(5):
        x = batch(8)
        torch.testing.assert_close(forward(x).sums, x.sum(dim=1))
        assert recordings == ([8] if count >= graphed.PLAIN_CALLS else [])


def test_the_last_batch_goes_into_the_graph_of_the_others(recordings):
    forward = Graphed(nn.Identity().eval(), sums)
    for num in (8, 8, 8, 5):
        x = batch(num)
        found = forward(x)
        assert len(found.sums) == num and found.many and found.none is None
        torch.testing.assert_close(found.sums, x.sum(dim=1))
    assert recordings == [8]
    for _ in range(3):  # much smaller, and again and again: it would mostly compute what nobody asked for
        torch.testing.assert_close(forward(x[:2]).sums, x[:2].sum(dim=1))
    assert recordings == [8, 2]


def test_results_are_kept_by_whoever_asked(recordings):
    forward = Graphed(nn.Identity().eval(), sums)
    xs = [batch(4) for _ in range(6)]
    found = [forward(x).sums for x in xs]
    for x, one in zip(xs, found, strict=True):
        torch.testing.assert_close(one, x.sum(dim=1))


def test_what_differs_in_more_than_size_has_a_graph_of_its_own(recordings):
    forward, x = Graphed(nn.Identity().eval(), sums), batch(4)
    for extent in (None, torch.arange(4)):
        for _ in range(3):
            expected = x.sum(dim=1) + (0 if extent is None else extent)
            torch.testing.assert_close(forward(x, extent).sums, expected)
    assert recordings == [4, 4]


def test_graphs_are_few(recordings, monkeypatch):
    monkeypatch.setattr(graphed, "MOST_GRAPHS", 2)
    forward = Graphed(nn.Identity().eval(), sums)
    for num in (1, 4, 1, 16):
        for _ in range(3):
            forward(batch(num))
    assert recordings == [1, 4, 16]
    for _ in range(3):
        forward(batch(3))  # 4 was not needed for longest, and is gone
    assert recordings == [1, 4, 16, 3]


def test_what_cannot_be_recorded_runs_plainly_and_says_so_once(recordings, monkeypatch, capsys):
    def refusing(run, pool):
        raise RuntimeError("operation not permitted when stream is capturing\nand much more")

    monkeypatch.setattr(graphed, "recorded", refusing)
    forward = Graphed(nn.Identity().eval(), sums)
    for _ in range(6):
        x = batch(3)
        torch.testing.assert_close(forward(x).sums, x.sum(dim=1))
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith("this cannot be a CUDA graph: operation not permitted when stream is capturing")


def test_what_waits_for_the_host_is_not_even_tried(recordings, monkeypatch, capsys):
    monkeypatch.setattr(graphed, "waits_of", lambda run, inputs: [run(), "model.py:7"][1:])
    forward, x = Graphed(nn.Identity().eval(), sums), batch(3)
    for _ in range(6):
        torch.testing.assert_close(forward(x).sums, x.sum(dim=1))
    assert recordings == []
    assert capsys.readouterr().err.count("it waits for the device in model.py:7") == 1


def test_forgetting(recordings):
    forward = Graphed(nn.Identity().eval(), sums)
    for _ in range(3):
        forward(batch(3))
    forward.forget()
    for _ in range(3):
        forward(batch(3))
    assert recordings == [3, 3]


def test_elsewhere_nothing_is_recorded():
    forward = Graphed(nn.Linear(4, 4), sums)
    with torch.no_grad():
        for _ in range(4):
            forward(batch(2))
    assert forward._graphs == {} and forward.refused is None


def test_every_tensor_is_changed_and_nothing_else():
    found = mapped({"a": (torch.ones(2), None), "b": Found(torch.ones(3))}, lambda tensor: tensor[:1])
    assert found["a"][0].shape == (1,) and found["a"][1] is None and found["b"].sums.shape == (1,)


# ---- half precision


def small_vit():
    torch.manual_seed(0)
    model = ViTSettings(picture_px=(16, 16), patch=4, width=32, depth=2, heads=2)
    task = ClassifySettings().build(model.build(), ("a", "b", "c")).eval()
    nn.init.normal_(task.head.weight)
    return task


def test_weights_that_are_cast_once_give_what_autocast_gives():
    """But for the norms, whose weights and results are rounded, too."""
    task, casting, images = small_vit(), CastOnce(), torch.randn(5, 3, 16, 16)
    exact = task.predict(images).logits.detach()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = task.predict(images).logits
        for _ in range(2):
            with casting:
                found = task.predict(images).logits
    assert found.dtype == expected.dtype
    scale = exact.abs().max()
    assert (found - exact).abs().max() < 2 * max((expected - exact).abs().max(), scale / 256)
    num = sum(p.numel() for name, p in task.named_parameters() if "tokens" not in name and "table" not in name)
    assert sum(cast.numel() for _, cast in casting.cast.values()) == num  # every weight, and each once
    assert all(p.dtype == torch.float32 for p in task.parameters())


def test_products_alone_are_bit_equal_to_autocast():
    layer, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(3, 8)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(x)
        with CastOnce():
            assert torch.equal(layer(x), expected)


def test_without_autocast_nothing_is_cast():
    task, casting, images = small_vit(), CastOnce(), torch.randn(2, 3, 16, 16)
    with torch.no_grad(), casting:
        found = task.predict(images).logits
    torch.testing.assert_close(found, task.predict(images).logits.detach())
    assert not casting.cast


def test_what_asks_for_full_precision_gets_it():
    """A detector's boxes: autocast is switched off around their last layers."""
    model = ViTSettings(picture_px=(32, 32), patch=8, width=32, depth=1, heads=2)
    torch.manual_seed(0)
    task = DetectSettings().build(model.build(), ("a", "b")).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), CastOnce():
        assert task.predict(torch.randn(2, 3, 32, 32)).boxes.dtype == torch.float32


def test_a_copy_with_cast_weights():
    task, casting, images = small_vit(), CastOnce(), torch.randn(2, 3, 16, 16)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        with casting:
            task.predict(images)
        copied = casting.copied(task)
        torch.testing.assert_close(copied.predict(images).logits, task.predict(images).logits, atol=0.05, rtol=0.05)
    assert copied.encoder.blocks[0].mlp.expand.weight.dtype == torch.bfloat16
    assert task.encoder.blocks[0].mlp.expand.weight.dtype == torch.float32
