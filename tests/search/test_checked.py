"""Vectors that are compared with what was written before they are used, and no more of them than that."""

import numpy as np
import pytest

from vitreous.errors import UserError
from vitreous.search import checked
from vitreous.search.checked import CheckedVectors, digests
from vitreous.search.nearest import nearest

NUM, WIDTH = 50, 6  # rows of 24 bytes, in parts of 64: some rows lie in two


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(checked, "PART", 64)
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).standard_normal((NUM, WIDTH)).astype("<f4"))
    return tmp_path / "vectors.npy"


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_they_read_like_an_array(path):
    expected, found = np.load(path), CheckedVectors(path, digests(path))
    rows = np.array([3, 49, 0])
    assert len(found) == NUM and found[7].tolist() == expected[7].tolist()
    for asked in (slice(None), slice(5, 9), slice(48, 99), slice(9, 9), rows, -1):
        np.testing.assert_array_equal(found[asked], expected[asked])
    assert nearest(found, expected[4], 3)[0].tolist() == nearest(expected, expected[4], 3)[0].tolist()


@pytest.mark.parametrize("row", [0, 1, 20, NUM - 1])
@pytest.mark.parametrize("byte", [0, 4 * WIDTH - 1])
def test_a_flipped_bit_is_noticed_before_its_row_is_used(path, row, byte):
    expected, known = np.load(path), digests(path)
    offset = path.stat().st_size - expected.nbytes
    flip(path, offset + row * 4 * WIDTH + byte)
    far = (row + NUM // 2) % NUM
    found = CheckedVectors(path, known)
    np.testing.assert_array_equal(found[far], expected[far])  # what is whole is served
    for asked in (row, slice(row, row + 1), np.array([far, row]), slice(None)):
        with pytest.raises(UserError, match=r"vectors\.npy: damaged .*; run the same `vitreous index` command again"):
            found[asked]
    with pytest.raises(UserError, match="damaged"):
        found.compare_all()


def test_what_is_no_such_file_is_refused_at_once(path):
    known, whole = digests(path), path.read_bytes()
    for contents in (b"", whole[:-64], whole + bytes(64), b"x" + whole[1:]):
        path.write_bytes(contents)
        with pytest.raises(UserError, match="damaged"):
            CheckedVectors(path, known)
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        CheckedVectors(path, known)
