"""Visual words: the relaxation, the two terms of the loss, and what is told when words are lost."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from promises import keep_promises, shrunk
from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import TokeniserSettings, ViTSettings
from vitreous.objectives.tokeniser import VisualTokensSettings, gumbel, perplexity
from vitreous.recipes.beit import cifar10_tokeniser

MODEL = TokeniserSettings(picture_px=(28, 28), stride=4, width=16, vocabulary=32, blocks=1)
OBJECTIVE = VisualTokensSettings(decoder_width=16, decoder_blocks=1)


def built(**changes):
    torch.manual_seed(0)
    return replace(OBJECTIVE, **changes).build(MODEL.build(), ())


def batch(num=3):
    ids = torch.arange(num)
    images = torch.randn(num, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    return Batch((images,), {}, ids, K.sample_keys(0, 0, ids))


def numbers(objective, progress, given=None):
    found = objective(batch() if given is None else given, torch.tensor(progress))
    return {name: value.detach() for name, value in found.items()}


def test_promises(tmp_path):
    recipe = replace(shrunk(cifar10_tokeniser(), lr=5e-3), model=MODEL, objective=OBJECTIVE)
    rows = keep_promises(recipe, tmp_path, falls_to=0.8)
    assert all(row["words"] > 2 and row["kl"] > 0 for row in rows)


def test_the_loss_by_hand():
    """Of torch's own softmax, KL and mean, for the same noise; the temperature and the weight of the KL by hand."""
    objective, given = built(kl_weight=0.5, anneal=0.5, kl_ramp=0.25), batch()
    logits = objective.encoder(given.images).maps[-1]
    even = torch.full_like(logits, 1 / 32)
    # batchmean divides by the pictures, of 49 cells each
    kl = F.kl_div(even.log(), logits.log_softmax(1), reduction="batchmean", log_target=True) / 49
    for progress, temperature, weight in ((0.0, 1.0, 0.0), (0.25, (1 + 1 / 16) / 2, 0.5), (1.0, 1 / 16, 0.5)):
        drawn = F.softmax((logits + gumbel(given.keys, logits)) / temperature, dim=1)
        error = (objective.decoder(drawn) - given.images).square().mean()
        found = numbers(objective, progress, given)
        torch.testing.assert_close(found["loss"], error + weight * kl, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found["kl"], kl.detach(), atol=1e-5, rtol=1e-5)


def test_the_kl_of_sure_and_of_even_cells():
    objective = built()
    with torch.no_grad():
        objective.encoder.words.weight.zero_()
        objective.encoder.words.bias.zero_()
        assert abs(numbers(objective, 0.5)["kl"]) < 1e-6
        objective.encoder.words.bias[3] = 1e3
        assert numbers(objective, 0.5)["kl"].item() == pytest.approx(math.log(32))


def test_gumbel_noise_is_gumbel_noise():
    noise = gumbel(K.sample_keys(0, 0, torch.arange(50)), torch.empty(50, 40, 10, 10))
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)  # Euler's constant
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.01)
    # The law it is there for: the argmax of logits and noise is a draw from their softmax.
    logits = torch.tensor([0.0, 1.0, 2.0])
    drawn = (logits + noise.reshape(-1, 4)[:, :3]).argmax(1)
    torch.testing.assert_close(drawn.bincount() / len(drawn), logits.softmax(0), atol=0.01, rtol=0)


def test_noise_belongs_to_the_sample_whatever_its_batch(monkeypatch):
    """So two ranks draw what one would, and the mean of their losses is that of the whole."""
    objective, whole = built(), batch(4)
    parts = [numbers(objective, 0.3, part)["loss"] for part in whole.parts(2)]
    torch.testing.assert_close(torch.stack(parts).mean(), numbers(objective, 0.3, whole)["loss"])
    monkeypatch.setattr("vitreous.keys.uniform", lambda keys, purpose, num: torch.zeros(len(keys), num))
    assert gumbel(whole.keys, torch.empty(4, 5)).isfinite().all()  # where every draw is the least


def test_perplexity_by_hand():
    assert perplexity(torch.tensor([[1, 1], [1, 1]]), 8).item() == pytest.approx(1)
    assert perplexity(torch.tensor([[0, 3], [5, 7]]), 8).item() == pytest.approx(4)
    uneven = perplexity(torch.tensor([0, 0, 0, 1]), 8)  # entropy of (3/4, 1/4)
    assert uneven.item() == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))


def test_lost_words_are_noticed():
    objective = built()
    with torch.no_grad():
        objective.encoder.words.bias[3] = 1e3
    found = numbers(objective, 0.5)
    told = objective.concern({name: float(value) for name, value in found.items()})
    assert "only 1.0 of them" in told and "kl_weight" in told and "\n" not in told
    fresh = {name: float(value) for name, value in numbers(built(), 0.5).items()}
    assert objective.concern(fresh) is None and objective.concern({}) is None


def test_reconstruction_is_drawn_from_the_codes_alone():
    objective, given = built(), batch()
    codes, drawn = objective.reconstruct(given.images)
    assert codes.shape == (3, 7, 7) and drawn.shape == given.images.shape
    assert torch.equal(codes, objective.encoder(given.images).maps[-1].argmax(1))
    vectors = objective.decoder.words.weight.T[codes].permute(0, 3, 1, 2)
    torch.testing.assert_close(drawn, objective.decoder.layers(vectors))


def test_in_bfloat16_the_losses_stay_in_float32():
    objective = built()
    exact = numbers(objective, 0.5)
    with torch.autocast("cpu", torch.bfloat16):
        found = numbers(objective, 0.5)
    assert all(value.dtype == torch.float32 for value in found.values())
    assert found["loss"].item() == pytest.approx(exact["loss"].item(), rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"final_temperature": 2.0}, "not higher"),
        ({"final_temperature": 0.0}, "above 0"),
        ({"anneal": 0.0}, "anneal is 0.0"),
        ({"kl_ramp": 1.5}, "kl_ramp is 1.5"),
        ({"kl_weight": -1.0}, "kl_weight"),
        ({"decoder_width": 18}, "multiple of the stride"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message) as error:
        built(**changes)
    assert "\n" not in str(error.value)


def test_only_a_tokeniser_learns_words():
    vit = ViTSettings(picture_px=(8, 8), patch=4, width=8, depth=1, heads=2).build()
    with pytest.raises(UserError, match=r"--model\.kind Tokeniser"):
        OBJECTIVE.build(vit, ())
