"""Half pictures completed: drawn from the model's own chances, the same each time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vitreous import keys as K
from vitreous.display import figures
from vitreous.errors import UserError
from vitreous.inspection.completions import as_pixels, complete, completions_figure, drawn
from vitreous.models import IGPTSettings
from vitreous.models.base import Grid

SETTINGS = IGPTSettings(picture_px=(4, 6), clusters=7, width=16, depth=2, heads=2)


def random_model(settings=SETTINGS):
    torch.manual_seed(0)
    model = settings.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def random_pictures(num=3):
    return torch.randn(num, 3, 4, 6, generator=torch.Generator().manual_seed(1))


KEYS = K.sample_keys(0, 0, torch.arange(3))


def test_what_is_given_stays_and_the_rest_is_of_the_palette():
    model, images = random_model(), random_pictures()
    made = complete(model, images, KEYS)
    assert torch.equal(made[:, :, :2], images[:, :, :2])
    assert not torch.equal(made[:, :, 2:], images[:, :, 2:])
    words = model.read(made)
    assert torch.equal(model.paint(words, Grid(4, 6))[:, :, 2:], made[:, :, 2:])


def test_what_is_not_given_is_not_looked_at():
    model, images = random_model(), random_pictures()
    other = images.clone()
    other[:, :, 2:] = 0
    assert torch.equal(complete(model, images, KEYS), complete(model, other, KEYS))


def test_the_keys_decide():
    model, images = random_model(), random_pictures()
    made = complete(model, images, KEYS, keep_rows=0)
    assert torch.equal(complete(model, images, KEYS, keep_rows=0), made)
    assert torch.equal(complete(model, images[1:2], KEYS[1:2], keep_rows=0), made[1:2])  # in any company
    assert not torch.equal(complete(model, images, KEYS + 1, keep_rows=0), made)


def test_the_likeliest_by_plain_computation():
    """Without a memory: the whole picture is read again for every pixel."""
    model, images = random_model(), random_pictures()
    words = model.read(images)
    for place in range(12, 24):
        words[:, place] = model.logits(words)[:, place].argmax(dim=1)
    made = complete(model, images, KEYS, top_k=1)
    assert torch.equal(model.read(made)[:, 12:], words[:, 12:])
    assert torch.equal(complete(model, images, KEYS, temperature=1e-4), made)


def test_draws_have_the_probabilities_of_the_model():
    logits = torch.tensor([0.3, -1.0, 2.0, -torch.inf, 1.0])
    chances = (torch.arange(10_000) + 0.5) / 10_000
    found = drawn(logits.expand(10_000, -1), chances).bincount(minlength=5) / 10_000
    torch.testing.assert_close(found, logits.softmax(dim=0), atol=2e-4, rtol=0)
    few = drawn(logits.expand(10_000, -1), chances, top_k=2).bincount(minlength=5) / 10_000
    torch.testing.assert_close(few, torch.tensor([0.0, 0.0, 0.731, 0.0, 0.269]), atol=2e-4, rtol=0)
    edges = drawn(logits.expand(2, -1), torch.tensor([0.0, 1 - 2.0**-24]))
    assert edges.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep_rows": 4}, "of 4 rows, 0 to 3 can be kept"),
        ({"temperature": 0.0}, "more than 0"),
        ({"top_k": 0}, "at least 1"),
    ],
)
def test_what_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        complete(random_model(), random_pictures(), KEYS, **changes)
    with pytest.raises(UserError, match="built for"):
        complete(random_model(replace(SETTINGS, picture_px=(6, 6))), random_pictures(), KEYS)


def test_pixels_and_figure(tmp_path):
    levels = torch.randint(256, (2, 3, 4, 6), generator=torch.Generator().manual_seed(0))
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
    shift, scale = (torch.tensor(values)[:, None, None] for values in (mean, std))
    pixels = as_pixels((levels / 255 - shift) / scale, mean, std)
    assert np.array_equal(np.stack(pixels), levels.permute(0, 2, 3, 1).numpy())
    made = completions_figure(pixels, [[pixels[1]] * 3, [pixels[0]] * 3], keep_rows=2, title="$ halves")
    titles = [ax.get_title() for ax in made.axes]
    assert titles[:5] == ["given", "sample 1", "sample 2", "sample 3", "picture"] and len(titles) == 10
    given = np.asarray(made.axes[0].get_images()[0].get_array())
    assert (given[:2, :, 3] == 255).all() and (given[2:, :, 3] == 0).all()
    figures.save(made, tmp_path / "completions")
    assert (tmp_path / "completions.png").stat().st_size > 1000
