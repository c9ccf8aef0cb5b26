"""Every family of models, as ONNX Runtime computes it, against torch."""

import numpy as np
import pytest
import torch
from onnx import TensorProto
from small_models import random_trained, vit
from torch import nn

from test_conformance import MODELS
from vitreous.export.graph import Graph, Value
from vitreous.export.parts import NotByHandError, write_task
from vitreous.export.runtime import open_session
from vitreous.models import PixelsSettings, ResNetSettings, ViTSettings
from vitreous.tasks.classify import ClassifySettings


def session(task, precision="fp32"):
    graph = Graph(precision)
    answer = write_task(task, graph, "tensors")
    h, w = task.encoder.picture_px
    shape = ("batch", 3, h, w)
    return open_session(
        graph.model([("tensors", TensorProto.FLOAT, shape)], {"logits": Value(answer, (3,))}).SerializeToString()
    )


def answers(task, precision="fp32", num=5):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(num, 3, *task.encoder.picture_px, generator=generator)
    with torch.inference_mode():
        expected = task.predict(images).logits.numpy()
    opened = session(task, precision)
    (found,) = opened.run(None, {"tensors": images.numpy()})
    (alone,) = opened.run(None, {"tensors": images[1:2].numpy()})
    return expected, found, alone


# Those with a graph of their own.
BY_HAND = (ViTSettings, ResNetSettings, PixelsSettings)
WRITTEN = [
    name
    for name, model in MODELS.items()
    if isinstance(model, BY_HAND) and getattr(model, "pool", None) != "attention"  # torch writes that one
]


@pytest.mark.parametrize("name", WRITTEN)
def test_every_family(name):
    expected, found, alone = answers(random_trained(MODELS[name]).task())
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(alone, expected[1:2], atol=1e-4, rtol=0)


@pytest.mark.parametrize("head", ["linear", "tanh", "distilled", "class-and-mean"])
@pytest.mark.parametrize("positions", ["learned", "relative", "bias"])
def test_every_head_reads_the_tokens_it_needs(head, positions):
    model = vit(num_prefix=2, num_registers=1, positions=positions)
    expected, found, alone = answers(random_trained(model, head).task())
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(alone, expected[1:2], atol=1e-4, rtol=0)


def test_two_softmaxes_that_are_averaged():
    task = ClassifySettings(head="distilled", fusion="softmax")
    expected, found, _ = answers(random_trained(vit(num_prefix=2), task=task).task())
    np.testing.assert_allclose(np.exp(expected).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_a_model_prepared_for_other_pictures():
    trained = random_trained().resized((16, 12))
    expected, found, _ = answers(trained.task())
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["vit", "vit-swiglu", "vit-beit", "vit-relative", "hybrid-resnet"])
def test_int8_is_near_and_is_int8(name):
    expected, found, _ = answers(random_trained(MODELS[name]).task(), "int8")
    assert 0 < np.abs(found - expected).max() < 0.1 * np.ptp(expected)


def test_where_the_class_token_is_read_the_last_block_computes_one_row():
    def rows(pool):
        graph = Graph()
        write_task(random_trained(vit(pool=pool)).task(), graph, "tensors")
        return sum(node.op_type == "Slice" for node in graph.nodes)

    assert rows("class") > rows("mean")


def test_bf16_halves_the_weights_and_rounds_to_even():
    task = random_trained().task()
    full, half = Graph(), Graph("bf16")
    for graph in (full, half):
        write_task(task, graph, "tensors")
    sizes = [sum(len(constant.raw_data) for constant in graph.constants) for graph in (full, half)]
    assert sizes[1] < 0.75 * sizes[0]
    rounded = {name: value.bfloat16().float() for name, value in task.state_dict().items() if value.ndim == 2}
    expected, found, _ = answers(task, "bf16")
    assert 1e-5 < np.abs(found - expected).max() < 0.05
    linear = task.head.weight.detach().numpy()
    (kept,) = [
        one for one in half.constants if tuple(one.dims) == linear.T.shape and one.data_type == TensorProto.BFLOAT16
    ]
    bits = np.frombuffer(kept.raw_data, np.uint16).astype(np.uint32) << 16
    np.testing.assert_array_equal(bits.view(np.float32).reshape(linear.T.shape), rounded["head.weight"].numpy().T)


def test_a_part_that_is_not_written_by_hand_is_left_to_torch():
    task = random_trained().task()
    task.encoder.pre_norm = nn.Softplus()
    with pytest.raises(NotByHandError, match="Softplus"):
        write_task(task, Graph(), "tensors")
