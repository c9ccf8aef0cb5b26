"""Folders cut into pieces and joined again, whatever happens to the pieces on the way."""

import importlib.util
from pathlib import Path

import pytest

from vitreous.errors import UserError

spec = importlib.util.spec_from_file_location("pieces", Path(__file__).parents[2] / "tools" / "pieces.py")
pieces = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pieces)


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / "here" / name for name in ("two", "one")]
    for number, folder in enumerate(made):
        (folder / "deeper").mkdir(parents=True)
        (folder / "deeper" / "large").write_bytes(bytes([number]) * 30_000)
        (folder / "empty").touch()
    return made


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_pieces_come_in_any_order_and_twice(folders, tmp_path):
    cut, there = pieces.cut(folders, tmp_path / "carry", 20_000), tmp_path / "there"
    assert len(cut) == 4 and all((piece / "part").stat().st_size <= 20_000 for piece in cut)
    for piece in (cut[2], cut[0], cut[2]):
        assert "still to come" in pieces.join(piece, there)
        assert not (there / "one").exists()
    assert "still to come: 4 of 4" in pieces.join(cut[1], there)
    assert "made" in pieces.join(cut[3], there)
    for folder in folders:
        assert contents(there / folder.name) == contents(folder)
    assert not list((there / ".pieces").iterdir())
    assert "there already" in pieces.join(cut[0], there)


def test_the_same_files_make_the_same_pieces(folders, tmp_path):
    first = pieces.cut(folders, tmp_path / "carry", 20_000)
    again = pieces.cut(folders[::-1], tmp_path / "again", 20_000)
    assert [contents(piece) for piece in first] == [contents(piece) for piece in again]


def test_a_damaged_piece_is_refused_and_what_was_half_made_is_made_again(folders, tmp_path):
    cut, there = pieces.cut(folders, tmp_path / "carry", 40_000), tmp_path / "there"
    part = (cut[0] / "part").read_bytes()
    (cut[0] / "part").write_bytes(part[:-1] + b"!")
    with pytest.raises(UserError, match="damaged in transit"):
        pieces.join(cut[0], there)
    (cut[0] / "part").write_bytes(part)
    (there / "one").mkdir(parents=True)  # one of two: it is left alone
    for piece in cut:
        pieces.join(piece, there)
    assert contents(there / "two") == contents(folders[0]) and not contents(there / "one")
