import json

import pytest
import torch

from vitreous.errors import UserError
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import scores, wilson
from vitreous.evaluation.relabel import ClassMapping, mapped, places_of, read_label_sets, set_accuracy

CLASSES = ("cat", "dog", "car", "cup")
# The likeliest: cat, dog, car, cup
LOGITS = torch.tensor([[4.0, 3, 0, 0], [0, 4, 3, 0], [0, 0, 4, 3], [3, 0, 0, 4]])


def made(labels, ids=(0, 1, 2, 3)):
    return LabelledLogits(LOGITS, torch.tensor(labels), torch.tensor(ids), CLASSES)


def written(path, document):
    path.write_text(json.dumps(document))
    return path


def test_any_of_the_right_labels_counts_and_pictures_without_one_do_not(tmp_path):
    sets = read_label_sets(written(tmp_path / "real.json", [[0, 3], ["car"], [], [0, "cup"]]), CLASSES)
    found = set_accuracy(made([0, 0, 0, 0]), sets, torch.arange(4))
    assert (found.pictures, found.left_out) == (3, 1)
    assert found.accuracy == wilson(2, 3)
    again = set_accuracy(made([0] * 4, ids=(3, 3, 3, 3)), sets, torch.arange(4))
    assert again.accuracy.value == 0.5, "ids say which set is whose"
    assert found.to_json()["pictures"] == 3


def test_sets_follow_the_files_own_numbers():
    names = ["val/n01/ILSVRC2012_val_00000002.JPEG", "val/n02/ILSVRC2012_val_00000001.JPEG", "x7.png", "12_a.png"]
    assert places_of(names, 12).tolist() == [1, 0, 6, 11]
    with pytest.raises(UserError, match=r"12_a\.png has the number 12, but there are labels for 11"):
        places_of(names, 11)
    sets = [frozenset({1}), frozenset({0}), frozenset({2}), frozenset({3})]
    assert set_accuracy(made([0] * 4), sets, torch.tensor([1, 0, 2, 3])).accuracy.value == 1
    assert set_accuracy(made([0] * 4), sets, torch.arange(4)).accuracy.value == 0.5


@pytest.mark.parametrize("names", [["b.png", "a.png"], ["x/1.png", "y/1.png"], ["0.png", "1.png"]])
def test_sets_follow_the_data_where_names_do_not_number_it(names):
    assert places_of(names, 2).tolist() == [0, 1]
    with pytest.raises(UserError, match="labels for 3 pictures, but 2"):
        places_of(names, 3)


def test_bad_label_sets_are_named(tmp_path):
    for wrong, word in [
        ({"a": 1}, "list of lists"),
        ([1, 2], "list of lists"),
        ([[0], [9]], "picture 1 has the label 9"),
        ([["cow"]], "picture 0 has the label 'cow'"),
        ([[True]], "True"),
        ([[-1]], "-1"),
    ]:
        with pytest.raises(UserError, match=word):
            read_label_sets(written(tmp_path / "real.json", wrong), CLASSES)
    (tmp_path / "real.json").write_text("[[")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        read_label_sets(tmp_path / "real.json", CLASSES)
    with pytest.raises(UserError, match="cannot be read"):
        read_label_sets(tmp_path / "absent.json", CLASSES)
    with pytest.raises(UserError, match="none of these pictures"):
        set_accuracy(made([0] * 4), [frozenset()] * 4, torch.arange(4))


def test_a_class_mapping_restricts_the_choice(tmp_path):
    """Data classes: pet (cat or dog), mug (cup), tree (nothing). The third picture's car is no choice: mug leads."""
    mapping = ClassMapping.read(written(tmp_path / "map.json", {"pet": ["cat", "dog"], "mug": "cup", "tree": []}))
    found = mapped(made([1, 1, 0, 2]), ("mug", "pet", "tree"), mapping)
    assert found.classes == ("mug", "pet")
    assert found.ids.tolist() == [0, 1, 2], "the tree is left out"
    assert found.labels.tolist() == [1, 1, 0]
    assert found.logits.tolist() == [[0, 4], [0, 4], [3, 0]]
    assert scores(found).top1.value == 1
    # As ObjectNet has it: the best among all classes that are mapped to, right where it is one of the label's.
    allowed = torch.tensor([0, 1, 3])
    choice = allowed[LOGITS[:, allowed].argmax(dim=1)].tolist()
    assert [CLASSES[number] for number in choice[:3]] == ["cat", "dog", "cup"]


def test_bad_mappings_are_named(tmp_path):
    for wrong, word in [
        ([1], "expected an object"),
        ({"pet": 3}, "'pet' must be mapped"),
        ({"pet": [3]}, "'pet' must"),
    ]:
        with pytest.raises(UserError, match=word):
            ClassMapping.read(written(tmp_path / "map.json", wrong))
    with pytest.raises(UserError, match=r"'pet' to 'catt', which the model does not know. Did you mean cat"):
        mapped(made([0] * 4), ("pet", "mug"), ClassMapping({"pet": ("catt",), "mug": ("cup",)}))
    with pytest.raises(UserError, match="maps 'pet' and 'kitten' to 'cat': the model cannot tell them apart"):
        mapped(made([0] * 4), ("pet", "kitten"), ClassMapping({"pet": ("cat", "dog"), "kitten": ("cat",)}))
    with pytest.raises(UserError, match="covers 1 of the data's 2"):
        mapped(made([0] * 4), ("pet", "mug"), ClassMapping({"pet": ("cat",)}))
