import json

import numpy as np
import pytest

from scenes import Pictures, brightened, recompressed, scene
from vitreous import settings
from vitreous.data.check import DataReport, check
from vitreous.data.sources import DataSettings, parse_numbers, written_numbers
from vitreous.data.splits import Splits
from vitreous.errors import UserError


def made(first, num, **options):
    return Pictures([scene(number) for number in range(first, first + num)], **options)


@pytest.fixture(scope="module")
def messy():
    """Everything that can be wrong at once."""
    train = made(0, 200, name="train")
    train.given[10] = train.given[4]  # an exact duplicate, same label
    train.given[21] = recompressed(train.given[30], 80)  # near, and under two labels
    train.given[50] = None
    train.given[60] = np.full((30, 40, 3), 77, np.uint8)
    train.given[61] = scene(61, (9, 30))
    train.given[62] = np.repeat(scene(62)[..., :1], 3, axis=2)
    test = made(200, 40, name="test")
    test.given[4] = brightened(train.given[100], 1.05)
    test.given[8] = train.given[150]
    val = made(300, 20, name="val")
    val.given[2] = train.given[160]
    val.given[5] = test.given[21]
    return check(Splits(train, val, test), "somewhere")


def test_what_is_wrong_is_named(messy):
    assert [part.pictures for part in messy.parts] == [199, 20, 40]
    assert messy.parts[0].unreadable == ("train/50 (cut short)",)
    assert (messy.num_equal, messy.num_near) == (1, 1)
    assert [(twins.one, twins.other, twins.equal) for twins in messy.twins] == [
        ("train/4", "train/10", True),
        ("train/21", "train/30", False),
    ]
    assert [(twins.one, twins.other) for twins in messy.two_labels] == [("train/21", "train/30")]
    assert messy.num_two_labels == 1
    assert messy.tiny == ("train/61",)
    assert messy.flat == ("train/60",)
    assert messy.grey_share == pytest.approx(2 / 259)


def test_leaks_are_left_out_of_train_alone(messy):
    found = {(leak.part, leak.picture, leak.also_in, leak.twin, leak.equal) for leak in messy.leaks}
    assert found == {
        ("train", "train/100", "test", "test/4", False),
        ("train", "train/150", "test", "test/8", True),
        ("train", "train/160", "val", "val/2", True),
        ("val", "val/5", "test", "test/21", True),
    }
    assert messy.left_out == (100, 150, 160)
    assert messy.num_train == 196


def test_sizes_balance_and_colours(messy):
    assert messy.heights == (30, 80, 80) and messy.widths == (9, 96, 96)
    assert messy.train_counts == (99, 100)
    assert messy.imbalance == pytest.approx(100 / 99)
    levels = np.concatenate([scene(number).reshape(-1, 3) for number in range(200)]) / 255
    np.testing.assert_allclose(messy.mean, levels.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(messy.std, levels.std(axis=0), atol=0.01)


def test_the_summary_has_a_line_for_each(messy):
    text = "\n".join(messy.summary())
    for words in (
        "199 train, 20 val, 40 test; 2 classes",
        "unreadable, skipped: 1 (train/50 (cut short))",
        "duplicates within a part: 1 exact, 1 near (train/4 and train/10, ...)",
        "pictures under two classes: 1 (train/21 and train/30)",
        "pictures in two parts: 4 (train/100 in train is test/4 in test); left out: 3 of train, none of test",
        "pictures of one colour: 1 (train/60)",
        "pictures below 16 px: 1 (train/61)",
    ):
        assert words in text


def test_it_comes_back_from_json(messy):
    assert settings.from_json(DataReport, json.loads(json.dumps(settings.to_json(messy)))) == messy


def test_clean_data_has_short_words():
    report = check(Splits(made(0, 30), None, made(100, 10)))
    assert report.summary() == [
        "30 train, 10 test; 2 classes",
        "all 96 x 80 px, in colour",
        "15 training pictures of every class",
        "duplicates within a part: 0 exact, 0 near",
        "pictures in two parts: none",
    ]
    assert report.left_out == () and report.small_classes == ()


def test_small_classes_are_named():
    labels = [0] * 20 + [1] * 5 + [2]
    report = check(Splits(made(0, 26, labels=labels, classes=("a", "b", "c")), None, None))
    assert report.small_classes == ("b 5", "c 1")
    assert "classes with too few training pictures to learn from: b 5, c 1" in report.summary()
    assert report.imbalance == 20


def test_too_many_broken_files_stop_it():
    source = made(0, 30)
    source.given[:] = [None] * 30
    with pytest.raises(UserError, match="30 of 30 pictures cannot be read"):
        check(Splits(source, None, None))


def test_pictures_are_left_out_by_their_number_in_the_set_as_it_is():
    whole = DataSettings(where="fashion", train_limit=300, keep_gb=0).build().train
    numbers = whole.numbers(np.arange(300))
    gone = [int(numbers[place]) for place in (5, 6, 250)]
    settings_ = DataSettings(where="fashion", train_limit=300, leave_out=written_numbers(gone))
    less = settings_.build().train
    stay = np.delete(np.arange(300), [5, 6, 250])
    assert len(less) == 297
    assert less.numbers(np.arange(297)).tolist() == numbers[stay].tolist()
    assert all(np.array_equal(less.read(at), whole.read(int(stay[at]))) for at in (4, 5, 248, 249, 296))


def test_numbers_as_text():
    assert written_numbers([22, 3, 20, 21, 17, 3]) == "3,17,20-22"
    assert parse_numbers("3,17, 20-22") == [3, 17, 20, 21, 22]
    with pytest.raises(UserError, match="'x' is neither a number nor a range"):
        parse_numbers("3,x")
    with pytest.raises(UserError, match="all pictures of the class"):
        DataSettings(where="fashion", leave_out="0-11999").build()
