import io

import numpy as np
import pytest
from PIL import Image

from scenes import Pictures, brightened, encoded, recompressed, resized, scene
from vitreous.data.duplicates import (
    Fingerprints,
    exact_groups,
    fingerprint,
    fingerprints,
    near_groups,
    near_pairs,
    overlaps,
)
from vitreous.data.sources import open_sources

SCENES = [scene(number) for number in range(60)]
CHANGES = {
    "jpeg 75": lambda picture: recompressed(picture, 75),
    "jpeg 40": lambda picture: recompressed(picture, 40),
    "half": lambda picture: resized(picture, 0.5),
    "double": lambda picture: resized(picture, 2.0),
    "half, jpeg 75": lambda picture: recompressed(resized(picture, 0.5), 75),
    "gain 1.1": lambda picture: brightened(picture, 1.1),
    "15 levels": lambda picture: brightened(picture, levels=15),
    "less contrast": lambda picture: brightened(picture, 0.8, 20),
}


def prints(pictures):
    return Fingerprints.of([fingerprint(picture) for picture in pictures])


def test_equal_pixels_count_however_they_are_stored():
    lossless = np.array(Image.open(io.BytesIO(encoded(SCENES[3], "WEBP", lossless=True))))
    other_shape = SCENES[0].reshape(96, 80, 3)  # the same bytes are not the same picture
    groups = exact_groups(prints([*SCENES[:5], lossless, other_shape]))
    assert groups[5] == groups[3]
    assert len(np.unique(groups)) == 6
    assert len(exact_groups(prints([]))) == len(near_groups(prints([]))) == 0


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_copies_are_found(change):
    groups = near_groups(prints([*SCENES, *(change(picture) for picture in SCENES)]))
    assert np.mean(groups[:60] == groups[60:]) >= 0.98
    assert len(np.unique(groups[:60])) == 60, "different pictures stay different"


def test_chains_are_one_group():
    copies = [SCENES[0], recompressed(SCENES[0], 60), resized(SCENES[0], 0.7), SCENES[0], brightened(SCENES[0], 1.05)]
    groups = near_groups(prints([*copies, *SCENES[1:20]]))
    assert len(set(groups[:5])) == 1
    assert len(np.unique(groups)) == 20


def test_pictures_of_one_colour_are_no_near_duplicates():
    flat = [np.full((20, 20, 3), level, np.uint8) for level in range(0, 200, 4)]
    assert len(near_pairs(prints(flat))) == 0
    groups = near_groups(prints([*flat, flat[7]]))
    assert groups[-1] == groups[7] and len(np.unique(groups)) == len(flat)


def test_the_same_shapes_in_other_colours_are_not_the_same():
    red, blue = SCENES[4].copy(), SCENES[4].copy()
    red[..., 0], blue[..., 0] = 250, 10
    red[..., 2], blue[..., 2] = 10, 250
    groups = near_groups(prints([red, blue, *SCENES[5:20]]))
    assert groups[0] != groups[1]


def test_overlap_names_pictures_of_train_by_their_index():
    train = Pictures([*SCENES[:20], None, *SCENES[20:30]] + [scene(number) for number in range(100, 300)])
    test = Pictures([recompressed(SCENES[25], 80), SCENES[7], *(scene(number) for number in range(60, 70))])
    seen = overlaps(train, [test, Pictures(SCENES[3:5])])
    assert [numbers.tolist() for numbers in seen] == [[7, 26], [3, 4]]
    found, kept = fingerprints(train)
    assert len(found) == len(kept) == 230 and 20 not in kept


def test_look_alikes_of_the_embedded_set_are_told_apart_and_its_copies_found():
    """Trousers and T-shirts are the hardest case: thousands that differ by little."""
    source = open_sources("fashion")["train"]
    clothes = [source.read(index) for index in range(3000)]
    copies = [recompressed(picture, 75) for picture in clothes[::20]]
    groups = near_groups(prints([*clothes, *copies]))
    assert np.mean(groups[:3000:20] == groups[3000:]) >= 0.98
    assert 3000 - len(np.unique(groups[:3000])) <= 3


def test_real_photos(shared_data):
    source = open_sources(str(shared_data / "oxford_pets"))["train"]
    photos = [source.read(index) for index in range(300)]
    copies = [recompressed(resized(picture, 0.6), 70) for picture in photos]
    groups = near_groups(prints([*photos, *copies]))
    assert (groups[:300] == groups[300:]).all()
    assert len(np.unique(groups)) == 300
