"""Two towers: they keep every objective's promises, and a text tower does what CLIP's and SigLIP's do."""

import math
import sys
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from captions import draw_captions, shrunk_words
from promises import WORLD, keep_promises
from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.data.rendered import Rendered
from vitreous.data.splits import Splits
from vitreous.errors import UserError
from vitreous.jobs.train import train
from vitreous.jobs.words import with_words
from vitreous.models import SwinSettings, ViTSettings
from vitreous.models.text import TextSettings
from vitreous.recipes.words import flickr8k_lit, flickr8k_siglip, rendered_clip
from vitreous.tasks.image_text import ImageTextSettings, drawn_captions
from vitreous.tasks.predictions import Embeddings
from vitreous.tasks.retrieval import RetrievalMetric, ranks
from vitreous.training.run import RunDirectory
from vitreous.weights.trained import Trained

TEXT = TextSettings(vocabulary=60, context=12, width=16, depth=2, heads=2, end=59)
TINY = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return draw_captions(tmp_path_factory.mktemp("captioned"))


def built(settings=None, encoder=TINY):
    torch.manual_seed(0)
    return (settings or ImageTextSettings(width=8, text=TEXT)).build(encoder.build(), ())


def rows(num=5, length=12):
    """Token ids: some, the end, and padding."""
    ids = torch.randint(1, 58, (num, length), generator=torch.Generator().manual_seed(0))
    ends = torch.arange(num) % (length - 3) + 2
    places = torch.arange(length)
    return ids.masked_fill(places == ends[:, None], 59).masked_fill(places > ends[:, None], 0)


# ---- promises


def test_promises_of_clip(table, tmp_path):
    logged = keep_promises(shrunk_words(rendered_clip(), table), tmp_path, falls_to=0.97, finetune=False, probe=False)
    assert {"loss", "scale"} <= logged[0].keys()
    results = RunDirectory(tmp_path / "one").results()
    assert results["headline"] == "recall@1" and results["val"]["pictures"] == 16
    assert 0 <= results["val"]["text@1"] <= results["val"]["text@10"] <= 1
    whole = Trained.load(tmp_path / "one")
    ids = torch.from_numpy(whole.tokenizer()(["a small red ring above a large blue disc", ""]))
    assert ids.shape == (2, 40) and len(whole.tokenizer()) == whole.card.task.text.vocabulary <= 560
    torch.testing.assert_close(whole.task().embed_texts(ids).norm(dim=1), torch.ones(2))


def test_promises_of_siglip(table, tmp_path):
    recipe = shrunk_words(flickr8k_siglip(start=None), table, chunk=8)
    assert {"scale", "bias"} <= keep_promises(recipe, tmp_path, falls_to=0.97, finetune=False, probe=False)[0].keys()


def test_a_locked_tower_stays_as_it_was(table, tmp_path):
    recipe = shrunk_words(flickr8k_lit(), table, steps=6)
    recipe = replace(recipe, model=replace(recipe.model, dropout=0.5))
    before = recipe.objective.build(recipe.model.build(), ())
    assert not before.train().encoder.training and before.projection.training
    with pytest.raises(UserError, match="nothing to train"):
        frozen = recipe.objective.build(recipe.model.build(), ())
        recipe.optimizer.build(frozen.requires_grad_(False))
    train(replace(recipe, training=replace(recipe.training, seed=5)), tmp_path / "run", read_test=False)
    torch.manual_seed(5)
    untouched = recipe.model.build().state_dict(prefix="encoder.")
    weights = Trained.load(tmp_path / "run").weights
    assert all(torch.equal(weights[name], value) for name, value in untouched.items())
    assert not torch.equal(weights["log_scale"], torch.tensor(math.log(1 / 0.07)))
    with pytest.raises(UserError, match="name one with --start"):
        flickr8k_lit(start=None)


def test_both_towers_go_on_from_trained_ones(table, tmp_path):
    """With their tokenizer and text tower, though other captions and the recipe would give others."""
    recipe = shrunk_words(rendered_clip(), table, steps=4)
    train(recipe, tmp_path / "first", read_test=False)
    other = draw_captions(tmp_path / "other", splits=(("train", 32), ("val", 8)), captions=1)
    on = replace(shrunk_words(rendered_clip(), other, steps=1), start=str(tmp_path / "first"), start_head=True)
    on = replace(on, optimizer=replace(on.optimizer, lr=0.0))
    other_text = replace(on.objective.text, width=24, gelu="quick", context=20)
    on = replace(on, objective=replace(on.objective, width=None, text=other_text))
    train(on, tmp_path / "second", read_test=False)
    first, second = (Trained.load(tmp_path / name) for name in ("first", "second"))
    assert first.card.task.text == second.card.task.text and first.card.task.width == second.card.task.width
    assert first.tokenizer().document() == second.tokenizer().document()
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)
    with pytest.raises(UserError, match=r"give --objective\.loss softmax"):
        train(replace(on, objective=replace(on.objective, loss="sigmoid")), tmp_path / "third", read_test=False)
    with pytest.raises(UserError, match="has no text tower"):
        train(replace(on, start="vitreous-xs", objective=recipe.objective), tmp_path / "fourth", read_test=False)


def test_a_tokenizer_that_a_failed_start_left_is_not_kept(table, tmp_path, monkeypatch):
    """It belongs to other settings. A start that was refused leaves none."""
    recipe = shrunk_words(rendered_clip(), table, steps=1)
    text = recipe.objective.text
    for change, named in (({"context": 2}, r"^objective\.text\.context: texts of 2 tokens"), ({"heads": 5}, "heads")):
        failing = replace(recipe.objective, text=replace(text, **change))
        with pytest.raises(UserError, match=named):
            train(replace(recipe, objective=failing), tmp_path / "run", read_test=False)
        assert not (tmp_path / "run").exists()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("vitreous.jobs.train.build_objective", Mock(side_effect=KeyboardInterrupt))
        train(recipe, tmp_path / "run", read_test=False)
    assert (tmp_path / "run" / "tokenizer.json").is_file()
    larger = replace(recipe.objective, text=replace(text, vocabulary=540))
    train(replace(recipe, objective=larger), tmp_path / "run", read_test=False)
    assert len(Trained.load(tmp_path / "run").tokenizer()) == 540


def test_a_missing_tokenizer_is_told_before_pictures_are_read(table, tmp_path, monkeypatch):
    recipe, unread = shrunk_words(rendered_clip(), table), lambda _: pytest.fail("pictures were read")
    with pytest.raises(UserError, match="nowhere: there is no tokenizer"):
        named = replace(recipe, objective=replace(recipe.objective, tokenizer="nowhere"))
        train(named, tmp_path / "run", open_data=unread)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"pip install 'vitreous\[words\]'"):
        train(recipe, tmp_path / "run", open_data=unread)


def test_captions_are_needed():
    counted = Splits(Rendered("count", "test"), None, None)
    with pytest.raises(UserError, match="have no captions") as raised:
        with_words(rendered_clip(), counted, WORLD)
    assert "\n" not in str(raised.value)


# ---- the towers


def test_any_encoder_will_do():
    swin = SwinSettings(picture_px=(32, 32), patch=2, width=8, depths=(1, 1), heads=(1, 2), window=4)
    model = built(encoder=swin)
    assert model.embed_pictures(torch.randn(3, 3, 32, 32)).shape == (3, 8)
    assert built(ImageTextSettings(width=None, text=TEXT)).embed_texts(rows()).shape == (5, 16)  # the encoder's own


def test_what_follows_the_end_does_not_matter_to_a_causal_tower():
    model, ids = built(), rows()
    expected = model.embed_texts(ids)
    noise = torch.where(torch.arange(12) > (ids == 59).int().argmax(dim=1, keepdim=True), 7, ids)
    torch.testing.assert_close(model.embed_texts(noise), expected)
    torch.testing.assert_close(model.embed_texts(ids[:, :8]), expected)  # no text is longer
    with pytest.raises(UserError, match="13 tokens"):
        model.embed_texts(torch.zeros(1, 13, dtype=torch.int64))


def test_a_tower_that_reads_both_ways_needs_whole_rows():
    text = replace(TEXT, attention="both", pool="last", projection_bias=True)
    model, ids = built(ImageTextSettings(width=8, text=text, loss="sigmoid")), rows()
    changed = ids.clone()
    changed[:, 0] += 1
    assert (model.embed_texts(changed) - model.embed_texts(ids)).abs().max() > 1e-4
    with pytest.raises(UserError, match="8 tokens"):
        model.embed_texts(ids[:, :8])


def test_a_caption_is_drawn_by_the_samples_key():
    captions = torch.arange(4 * 3 * 2).view(4, 3, 2)
    counts = torch.tensor([1, 2, 3, 3])
    seen = set()
    for epoch in range(40):
        keys = K.sample_keys(0, epoch, torch.arange(4))
        batch = Batch((), {"captions": captions, "num_captions": counts}, torch.arange(4), keys)
        drawn = drawn_captions(batch)
        torch.testing.assert_close(drawn, drawn_captions(batch))
        seen |= {(number, int(row[0]) % 6 // 2) for number, row in enumerate(drawn)}
    assert seen == {(number, place) for number, count in enumerate(counts.tolist()) for place in range(count)}


def test_the_scale_stays_below_its_limit():
    model = built(ImageTextSettings(width=8, text=TEXT, max_scale=50.0))
    with torch.no_grad():
        model.log_scale.fill_(9.0)
    model.after_step(torch.tensor(0.0))
    assert float(model.log_scale.detach().exp()) == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"width": 0}, "width"),
        ({"chunk": 0}, "chunk"),
        ({"start_scale": 0.0}, "start_scale"),
        ({"start_scale": 200.0}, "max_scale"),
        ({"text": replace(TEXT, heads=3)}, "heads"),
        ({"text": replace(TEXT, depth=0)}, "depth"),
        ({"text": replace(TEXT, norm_epsilon=0.0)}, "norm_epsilon"),
    ],
)
def test_impossible_settings_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        built(replace(ImageTextSettings(width=8, text=TEXT), **changes))


# ---- retrieval


def test_ranks_by_hand():
    pictures = torch.eye(3)
    texts = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.4, 0.9], [0.0, 0.9, 0.1], [0.2, 0.3, 0.8]])
    found = ranks(pictures, texts, torch.tensor([0, 0, 1, 2]))
    assert found.of_pictures.tolist() == [0, 0, 1]  # of the third, the second text lies nearer
    assert found.of_texts.tolist() == [0, 2, 0, 0]


def test_ranks_are_those_of_float32_under_autocast():
    """In bfloat16, cosines of a trained model would round to the same number, and each tie counts against it."""
    directions = F.normalize(1 + 0.1 * torch.randn(50, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ranks(directions, directions, torch.arange(50))
    assert not found.of_pictures.any() and not found.of_texts.any()


def test_a_model_that_says_the_same_of_all_finds_nothing():
    same = torch.ones(20, 4) / 2
    metric = RetrievalMetric(lambda ids: same[: len(ids)])
    captions, num = torch.zeros(20, 1, 3, dtype=torch.int32), torch.ones(20, dtype=torch.int64)
    batch = Batch((), {"captions": captions, "num_captions": num}, torch.arange(20), torch.arange(20))
    metric.update(Embeddings(same), batch)
    assert metric.compute()["recall@10"] == 0.0
