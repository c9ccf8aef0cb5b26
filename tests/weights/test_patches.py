import pytest
import torch
import torch.nn.functional as F

from vitreous.weights.patches import resize_patches


@pytest.mark.parametrize(("patch", "new_patch"), [((4, 4), (8, 8)), ((4, 6), (7, 9))])
def test_a_patch_that_grows_keeps_its_token(patch, new_patch):
    torch.manual_seed(0)
    weight = torch.randn(5, 3 * patch[0] * patch[1], dtype=torch.float64)
    pictures = torch.randn(2, 3, *patch, dtype=torch.float64)
    larger = F.interpolate(pictures, new_patch, mode="bilinear", align_corners=False)
    resized = resize_patches(weight, 3, patch, new_patch)
    torch.testing.assert_close(larger.flatten(1) @ resized.T, pictures.flatten(1) @ weight.T)


def test_a_patch_that_shrinks_is_near_for_smooth_pictures():
    ramp = torch.linspace(-1, 1, 8, dtype=torch.float64)
    picture = (ramp[:, None] + 0.5 * ramp).expand(1, 3, 8, 8)
    weight = torch.randn(4, 3 * 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    smaller = F.interpolate(picture, (4, 4), mode="bilinear", align_corners=False)
    # Of the kernels, only what a resized patch can show matters; a plane is such a patch but for its borders.
    wide = resize_patches(resize_patches(weight, 3, (8, 8), (4, 4)), 3, (4, 4), (8, 8))
    grown = F.interpolate(smaller, (8, 8), mode="bilinear", align_corners=False)
    torch.testing.assert_close(
        smaller.flatten(1) @ resize_patches(weight, 3, (8, 8), (4, 4)).T, grown.flatten(1) @ wide.T
    )


def test_the_same_size_changes_nothing():
    weight = torch.randn(2, 12)
    assert resize_patches(weight, 3, (2, 2), (2, 2)) is weight
