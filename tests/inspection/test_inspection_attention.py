"""Attention that is caught beside the fused kernels: equal to transformers' own, and without a trace left behind."""

import threading

import pytest
import torch

from vitreous.errors import UserError
from vitreous.inspection import attention as module
from vitreous.inspection.attention import attention, watching
from vitreous.inspection.layout import layout
from vitreous.models import ConvStem, ResNetSettings, ViTSettings
from vitreous.nn.attention import Attention
from vitreous.weights.trained import Trained

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 24, "patch_size": 8}
PLAIN = SMALL | {"intermediate_size": 48}
PEERS = {
    "vit": ("ViTForImageClassification", PLAIN),
    "vit-wide": ("ViTForImageClassification", PLAIN | {"image_size": [16, 40]}),
    "deit-distilled": ("DeiTForImageClassificationWithTeacher", PLAIN),
    "dinov2": ("Dinov2Model", SMALL),
    "dinov2-registers": ("Dinov2WithRegistersModel", SMALL | {"num_register_tokens": 3}),
    "beit": ("BeitForImageClassification", PLAIN | {"use_relative_position_bias": True}),
    "beit-shared": ("BeitModel", PLAIN | {"use_shared_relative_position_bias": True}),
}
TINY = {"picture_px": (24, 16), "patch": 8, "width": 16, "depth": 3, "heads": 2}
ENCODERS = {
    "plain": ViTSettings.of(**TINY),
    "registers": ViTSettings.of(**TINY, num_prefix=2, num_registers=3),
    "no prefix": ViTSettings.of(**TINY, num_prefix=0, pool="mean"),
    "mean": ViTSettings.of(**TINY, pool="mean"),
    "relative": ViTSettings.of(**TINY, positions="relative"),
    "bias": ViTSettings.of(**TINY, positions="bias"),
    "bias-shared": ViTSettings.of(**TINY, positions="bias-shared", attention_bias="no-key"),
    "hybrid": ViTSettings.of(**TINY | {"patch": 2}, stem=ConvStem(widths=(8,), strides=(4,), residuals=(0,))),
}


def built(settings, seed=0):
    """With large random weights, so that no row is even."""
    encoder = settings.build()
    generator = torch.Generator().manual_seed(seed)
    for parameter in encoder.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.ndim > 1 else 0.5)
    return encoder.eval()


def pictures(encoder, num=2):
    return torch.randn(num, 3, *encoder.picture_px, generator=torch.Generator().manual_seed(1))


def whole(encoder, images):
    """All matrices, from the inputs of the attention modules by `weights` without rows."""
    found = []

    def keep(one, inputs):
        x, *added = inputs
        found.append(one.weights(x, None, *added))

    hooks = [one.register_forward_pre_hook(keep) for one in encoder.modules() if isinstance(one, Attention)]
    with torch.no_grad():
        encoder(images)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("peer", PEERS)
def test_equal_to_transformers_eager_attentions(peer, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind, config = PEERS[peer]
    model = getattr(transformers, kind)
    theirs = model._from_config(model.config_class(**config), attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    theirs.save_pretrained(tmp_path)
    ours = Trained.load(tmp_path).encoder().eval()
    images = pictures(ours)
    with torch.no_grad():
        expected = theirs(images, output_attentions=True).attentions
    num = layout(ours).num_tokens
    for rows in (range(num), [0], [num - 1, 0]):
        found = attention(ours, images, rows=rows)
        assert found.layers == (1, 2)
        for mine, other in zip(found.weights, expected, strict=True):
            torch.testing.assert_close(mine, other[:, :, list(rows)], atol=1e-5, rtol=0)
    assert expected[0].std() > 0.02  # the rows are no even ones, which anything would equal


@pytest.mark.parametrize("name", ENCODERS)
def test_rows_by_default_are_those_of_what_is_pooled(name):
    encoder = built(ENCODERS[name])
    images = pictures(encoder)
    found, matrices, place = attention(encoder, images), whole(encoder, images), layout(encoder)
    assert place.grid == (3, 2) and place.picture_px == (24, 16) and place.pitch_px == (8, 8)
    for row, matrix in zip(found.weights, matrices, strict=True):
        wanted = matrix[:, :, :1]
        if encoder.pool == "mean":
            assert found.rows is None
            wanted = matrix[:, :, encoder.num_prefix :].mean(dim=2, keepdim=True)
        torch.testing.assert_close(row, wanted)
        torch.testing.assert_close(row.sum(dim=-1), torch.ones(2, 2, 1))
    assert found.maps(-1).shape == (2, 2, 1, 3, 2)
    torch.testing.assert_close(found.maps(3)[0, 1, 0, 2, 1], found.weights[2][0, 1, 0, -1])


def test_chosen_layers_and_tokens():
    encoder = built(ENCODERS["registers"])
    images = pictures(encoder)
    matrices = whole(encoder, images)
    patch = layout(encoder).rows((2, 1))
    assert list(patch) == [5 + 5]
    found = attention(encoder, images, layers=[-1, 1], rows=[*patch, 3])
    assert found.layers == (3, 1) and found.rows == (10, 3)
    torch.testing.assert_close(found.of(-1), matrices[2][:, :, [10, 3]])
    torch.testing.assert_close(found.of(1), matrices[0][:, :, [10, 3]])
    with pytest.raises(UserError, match="no layer 2 among those recorded: 3, 1"):
        found.of(2)


def test_many_rows_in_blocks(monkeypatch):
    encoder = built(ENCODERS["mean"])
    images = pictures(encoder)
    whole_at_once = attention(encoder, images)
    monkeypatch.setattr(module, "BLOCK_VALUES", 2 * 2 * 7 * 4)  # four rows of seven at a time
    for one, other in zip(whole_at_once.weights, attention(encoder, images).weights, strict=True):
        torch.testing.assert_close(one, other)


def test_the_answer_is_bit_equal_and_the_hooks_are_gone():
    encoder = built(ENCODERS["relative"])
    images = pictures(encoder)
    with torch.no_grad():
        before = encoder(images).pooled
        with watching(encoder) as watched:
            during = encoder(images).pooled
        after = encoder(images).pooled
    assert torch.equal(before, during) and torch.equal(before, after)
    assert len(watched.maps().weights) == 3
    assert not any(one._forward_pre_hooks for one in encoder.modules())


def test_hooks_are_gone_after_an_error():
    encoder = built(ENCODERS["plain"])
    with pytest.raises(UserError, match="pictures of shape"):
        attention(encoder, torch.zeros(1, 3, 8, 8))
    assert not any(one._forward_pre_hooks for one in encoder.modules())


def test_a_model_in_training_is_looked_at_without_dropout_and_left_as_it_was():
    encoder = built(ViTSettings.of(**TINY, dropout=0.5, stochastic_depth=0.5))
    images = pictures(encoder)
    expected = attention(encoder, images)
    encoder.train()
    encoder.blocks[1].eval()
    modes = [one.training for one in encoder.modules()]
    for mine, other in zip(attention(encoder, images).weights, expected.weights, strict=True):
        assert torch.equal(mine, other)
    assert [one.training for one in encoder.modules()] == modes


def test_passes_of_other_threads_are_not_caught():
    encoder = built(ENCODERS["plain"])
    mine, other = pictures(encoder), torch.zeros(1, 3, 24, 16)
    expected = attention(encoder, mine).of(1)
    with torch.no_grad(), watching(encoder) as watched:
        encoder(mine)
        thread = threading.Thread(target=lambda: encoder(other))
        thread.start()
        thread.join()
    assert torch.equal(watched.maps().of(1), expected)


def test_compiled_code_is_unaffected():
    torch.compiler.reset()  # what other tests compiled would make sizes dynamic, and so a second graph
    compilations = []

    def counting(graph, example):
        from torch._dynamo.backends.debugging import aot_eager

        compilations.append(graph)
        return aot_eager(graph, example)

    encoder = built(ENCODERS["bias"])
    images = pictures(encoder)
    compiled = torch.compile(encoder, backend=counting, fullgraph=True)
    with torch.no_grad():
        before = compiled(images).pooled
        expected = attention(encoder, images)
        found = attention(compiled, images)  # the model itself is looked at
        assert torch.equal(compiled(images).pooled, before)
    assert len(compilations) == 1
    for one, other in zip(found.weights, expected.weights, strict=True):
        assert torch.equal(one, other)


def test_nothing_enters_code_that_is_compiled_meanwhile():
    encoder = built(ENCODERS["plain"])
    images = pictures(encoder)
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    with torch.no_grad(), watching(encoder) as watched:
        compiled(images)
    assert not watched.weights
    with pytest.raises(UserError, match="nothing was recorded"):
        watched.maps()


def test_half_precision_rows_still_sum_to_one():
    encoder = built(ENCODERS["plain"]).to(torch.bfloat16)
    row = attention(encoder, pictures(encoder).to(torch.bfloat16)).of(-1)
    assert row.dtype == torch.float32
    torch.testing.assert_close(row.sum(dim=-1), torch.ones(2, 2, 1))


def test_what_cannot_be_looked_at():
    encoder = built(ENCODERS["plain"])
    images = pictures(encoder)
    with pytest.raises(UserError, match="no layer 4: this model has layers 1 to 3"):
        attention(encoder, images, layers=[4])
    with pytest.raises(UserError, match="no layer 0"):
        attention(encoder, images, layers=[0])
    with pytest.raises(UserError, match="no token 7: the sequence has tokens 0 to 6"):
        attention(encoder, images, rows=[7])
    with pytest.raises(UserError, match="no row was given"):
        attention(encoder, images, rows=[])
    resnet = ResNetSettings(depths=(1,), base_width=8, picture_px=(24, 24)).build()
    with pytest.raises(UserError, match="has no attention"):
        attention(resnet, torch.zeros(1, 3, 24, 24))
