import pytest

from vitreous.data.plain_yaml import read_plain_yaml

TEXTS = [
    "path: ../datasets/coco8 # root\ntrain: images/train\ntest:\n\nnames:\n  0: person\n  1: bicycle\n",
    'names:\n  0: "\\"eel\\" # 3"  # and more\n',
    "train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['a cat', \"it's\"]\n\nroboflow:\n  version: 2\n",
    "names:\n- cat\n- 'big dog'\n- e#l\ntrain: [a.txt, b.txt]\n",
    "names: [\n  'cat',\n  'dog',  # two\n]\nval: x\n",
    "names: {0: cat, 1: 'dog: big', 2: \"a, b\"}\n",
    "---\nnames:\n  - cat\n  - dog\n\ntrain: 'it''s here'\n",
    "train: x\r\nnames:\r\n  0: cat\r\n",
    'names: ["one, two", three]\ntrain: "a \\"b\\""\n',
    "",
]


def as_text(value):
    """What YAML makes of a file, with every scalar as a text."""
    if isinstance(value, dict):
        return {str(key): as_text(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_text(one) for one in value]
    return None if value is None else str(value)


@pytest.mark.parametrize("text", TEXTS)
def test_read_as_a_whole_reader_of_yaml_does(text):
    yaml = pytest.importorskip("yaml")
    assert read_plain_yaml(text) == (as_text(yaml.safe_load(text)) or {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: [a, b\n", "line 1 opens"),
        ("a: 1\nnames: {0: a\nval: x\n", "line 2 opens"),
        ("train\n", "line 1 is neither"),
        (" a: 1\n", "line 1 is neither"),
        ("names: {a, b}\n", "line 1 has an entry without a colon"),
        ("- a\n- b\n", "line 1 is neither"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(text, message):
    with pytest.raises(ValueError, match=message):
        read_plain_yaml(text)


def test_nothing_is_made_but_texts():
    found = read_plain_yaml("a: !!python/object/apply:os.system ['x']\nb: &anchor 3\nc: *anchor\n")
    assert found == {"a": "!!python/object/apply:os.system ['x']", "b": "&anchor 3", "c": "*anchor"}
