"""iGPT: the words of a picture, what sees what, the same loss as transformers' ImageGPT, and writing with a memory."""

from dataclasses import replace

import pytest
import torch

from vitreous.errors import UserError
from vitreous.models import IGPTSettings, model_settings
from vitreous.models.base import Grid
from vitreous.models.flops import num_parameters
from vitreous.models.igpt import CausalAttention, nearest
from vitreous.models.shapes import shapes_only
from vitreous.tasks.classify import ClassifySettings

TINY = IGPTSettings(picture_px=(4, 6), clusters=11, width=16, depth=3, heads=2)


def random_model(settings=TINY):
    """Random everywhere, so that nothing is hidden by a start at zero."""
    torch.manual_seed(0)
    model = settings.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def random_words(model, num=2):
    cells = Grid(*model.picture_px).cells
    return torch.randint(len(model.palette), (num, cells), generator=torch.Generator().manual_seed(1))


# ---- words


def test_a_pixel_is_the_nearest_colour_of_the_palette():
    model = random_model()
    words = random_words(model)
    pictures = model.paint(words, Grid(4, 6))
    assert pictures.shape == (2, 3, 4, 6)
    assert torch.equal(model.read(pictures), words)
    assert torch.equal(pictures[1, :, 2, 5], model.palette[words[1, 2 * 6 + 5]])  # reading order
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randn(5, 7, 3, generator=generator)
    assert torch.equal(nearest(pixels, model.palette), torch.cdist(pixels, model.palette).argmin(dim=-1))


def test_autocast_does_not_round_colours():
    model = random_model(replace(TINY, clusters=512))
    images = torch.randn(4, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    words = model.read(images)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.read(images), words)


# ---- who sees whom


def test_a_place_sees_only_what_is_before_it():
    model = random_model()
    words = random_words(model, 1)
    changed = words.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 11
    one, two = model.logits(words), model.logits(changed)
    assert torch.equal(one[:, :11], two[:, :11])
    assert (one[:, 11:] != two[:, 11:]).any(dim=-1).all()
    maps, other = (model(model.paint(part, Grid(4, 6))).maps[0].flatten(2) for part in (words, changed))
    assert torch.equal(maps[..., :11], other[..., :11]) and not torch.equal(maps, other)


def test_weights_are_those_of_the_attention():
    torch.manual_seed(0)
    attention = CausalAttention(16, 2)
    x = torch.randn(2, 7, 16)
    weights = attention.weights(x)
    assert torch.equal(weights, weights.tril())
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 7))
    torch.testing.assert_close(attention.weights(x, rows=slice(3, 5)), weights[:, :, 3:5])
    values = attention._queries_keys_values(x)[2]
    answer = attention.project_out((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), answer)


# ---- the peer


def test_the_loss_of_transformers():
    """Weights copied to ImageGPT: the same logits and the same mean loss over all pixels."""
    transformers = pytest.importorskip("transformers")
    model = random_model()
    config = transformers.ImageGPTConfig(
        vocab_size=12, n_positions=25, n_embd=16, n_layer=3, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    peer = transformers.ImageGPTForCausalImageModeling(config).eval()
    state = model.state_dict()
    copied = {
        "transformer.wte.weight": state["words.weight"],
        # One place more than there are pixels: the peer reads the last one too, and forgets what it answers.
        "transformer.wpe.weight": torch.cat([state["positions.table"], torch.zeros(1, 16)]),
        "transformer.ln_f.weight": state["norm.weight"],
        "lm_head.weight": state["words.weight"][:-1],
    }
    names = {
        "ln_1.weight": "attention_norm.weight",
        "ln_2.weight": "mlp_norm.weight",
        "attn.c_attn": "attention.project_in",
        "attn.c_proj": "attention.project_out",
        "mlp.c_fc": "mlp.expand",
        "mlp.c_proj": "mlp.contract",
    }
    for i in range(3):
        for theirs, ours in names.items():
            if "ln" in theirs:
                copied[f"transformer.h.{i}.{theirs}"] = state[f"blocks.{i}.{ours}"]
            else:
                copied[f"transformer.h.{i}.{theirs}.weight"] = state[f"blocks.{i}.{ours}.weight"].T
                copied[f"transformer.h.{i}.{theirs}.bias"] = state[f"blocks.{i}.{ours}.bias"]
    missing, unexpected = peer.load_state_dict(copied, strict=False)
    assert not unexpected and all(name.endswith((".attn.bias", ".masked_bias")) for name in missing), missing
    words = random_words(model, 3)
    text = torch.cat([torch.full((3, 1), 11), words], dim=1)
    with torch.no_grad():
        theirs = peer(input_ids=text, labels=text)
        logits = model.logits(words)
    torch.testing.assert_close(logits, theirs.logits[:, :-1], atol=1e-5, rtol=1e-5)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())
    assert abs(float(loss - theirs.loss)) < 1e-5 * float(loss)
    with torch.no_grad():
        hidden = peer.transformer(input_ids=text[:, :-1], output_hidden_states=True).hidden_states[1]
        answered = model(model.paint(words, Grid(4, 6))).pooled
    torch.testing.assert_close(answered, model.blocks[1].attention_norm(hidden).mean(dim=1), atol=1e-5, rtol=1e-5)


# ---- the answer


def test_features_are_those_of_the_chosen_depth():
    with torch.no_grad():
        answers = {}
        for depth in (1, 2, 3):
            model = random_model(replace(TINY, feature_depth=depth))
            images = model.paint(random_words(model), Grid(4, 6))
            features = answers[depth] = model(images)
            tokens = model.encode(model.read(images), Grid(4, 6), depth)
            norm = model.norm if depth == 3 else model.blocks[depth].attention_norm
            torch.testing.assert_close(features.maps[0], norm(tokens).mT.reshape(2, 16, 4, 6))
            torch.testing.assert_close(features.pooled, features.maps[0].mean(dim=(2, 3)))
    assert not torch.allclose(answers[1].pooled, answers[2].pooled)
    assert [replace(TINY, depth=depth).middle for depth in (1, 2, 3, 24)] == [1, 1, 1, 12]


def test_a_fine_tuned_middle_leaves_deeper_layers_alone():
    task = ClassifySettings(head="tanh").build(random_model(), ("a", "b")).train()
    torch.nn.init.normal_(task.head.output.weight)
    task.predict(torch.randn(2, 3, 4, 6)).logits.square().sum().backward()
    moved = {name.split(".")[1] for name, p in task.encoder.blocks.named_parameters(prefix="b") if p.grad is not None}
    assert moved == {"0", "1"}  # of the second layer its first norm
    assert task.encoder.blocks[1].mlp.expand.weight.grad is None


def test_small_crops_and_resizing():
    model = random_model()
    with torch.no_grad():
        crop = model.features(torch.randn(2, 3, 2, 3))
        assert crop.maps[0].shape == (2, 16, 2, 3)
        model.resize((8, 6))
        assert model(torch.randn(2, 3, 8, 6)).maps[0].shape == (2, 16, 8, 6)
    with pytest.raises(UserError, match="unknown resizing of positions 'biliner'"):
        model.resize((4, 4), "biliner")


# ---- writing


def test_a_memory_changes_nothing():
    model = random_model()
    words = random_words(model)
    memory = model.memory(2)
    with torch.no_grad():
        whole = model.logits(words)
        one_by_one = [model.next_logits(words[:, :7], memory)]
        one_by_one += [model.next_logits(words[:, 7:10], memory)]
        one_by_one += [model.next_logits(words[:, i : i + 1], memory) for i in range(10, 23)]
    assert memory.length == 24
    torch.testing.assert_close(torch.stack(one_by_one, dim=1), whole[:, [7, *range(10, 24)]], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.next_logits(words[:, :0], model.memory(2)), whole[:, 0])


# ---- settings, names, export


def test_what_is_added_to_the_stream_starts_smaller_in_a_deeper_network():
    def spread(depth):
        torch.manual_seed(0)
        block = replace(TINY, depth=depth).build().blocks[0]
        return torch.stack([block.attention.project_out.weight.std(), block.mlp.contract.weight.std()])

    torch.testing.assert_close(spread(8) * 2, spread(2))


@pytest.mark.parametrize(
    ("name", "width", "depth", "heads", "millions"),
    [("igpt_s", 512, 24, 8, 76), ("igpt_m", 1024, 36, 8, 455), ("igpt_l", 1536, 48, 16, 1362)],
)
def test_sizes_of_the_paper(name, width, depth, heads, millions):
    settings = model_settings(name)
    assert (settings.width, settings.depth, settings.heads, settings.clusters) == (width, depth, heads, 512)
    with shapes_only():
        assert round(num_parameters(settings.build()) / 1e6) == millions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "multiple of the heads"),
        ({"clusters": 1}, "at least 2 colours"),
        ({"feature_depth": 4}, "blocks 1 to 3"),
        ({"feature_depth": 0}, "blocks 1 to 3"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        TINY.changed(**changes).build()
