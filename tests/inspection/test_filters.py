import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from vitreous.errors import UserError
from vitreous.inspection.filters import filter_components
from vitreous.models import ConvStem, ViTSettings


def tiny(**changes):
    settings = {"picture_px": (12, 16), "patch": (3, 4), "width": 64, "depth": 1, "heads": 2}
    return ViTSettings.of(**settings | changes).build()


def test_equal_to_scikit_learn():
    encoder = tiny()
    found = filter_components(encoder)
    weight = encoder.stem.patches.linear.weight.detach().double().numpy()
    oracle = PCA(28, svd_solver="full").fit(weight)
    assert found.filters.shape == (28, 3, 3, 4)
    np.testing.assert_allclose(found.explained, oracle.explained_variance_ratio_, rtol=1e-5)
    for mine, theirs in zip(found.filters.flatten(1).numpy(), oracle.components_, strict=True):
        assert abs(mine @ theirs) == pytest.approx(1, abs=1e-5)
        assert mine[np.abs(mine).argmax()] > 0


def test_a_filter_bank_with_one_direction():
    encoder = tiny(picture_px=(4, 4), patch=2, width=8)
    direction = torch.zeros(3, 2, 2)
    direction[0, 1, 0], direction[2, 0, 1] = 2.0, -1.0
    encoder.stem.patches.linear.weight.data = torch.linspace(-1, 3, 8)[:, None] * direction.flatten()
    found = filter_components(encoder, num=2)
    torch.testing.assert_close(found.explained, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found.filters[0], direction / 5**0.5)
    picture = found.pictures[0]
    assert picture[1, 0].tolist() == [1.0, 0.5, 0.5]  # red
    torch.testing.assert_close(picture[0, 1], torch.tensor([0.5, 0.5, 0.25]))


def test_grey_pictures_and_fewer_components():
    found = filter_components(tiny(channels=1))
    assert found.filters.shape == (12, 1, 3, 4) and found.pictures.shape == (12, 3, 4, 3)
    assert torch.equal(found.pictures[..., 0], found.pictures[..., 2])


def test_what_is_no_picture():
    hybrid = tiny(picture_px=(16, 16), patch=1, stem=ConvStem(widths=(8,), strides=(4,), residuals=(0,)))
    with pytest.raises(UserError, match="cut from a map of 8 channels"):
        filter_components(hybrid)
    with pytest.raises(UserError, match="4 channels"):
        filter_components(tiny(channels=4))
