"""Files in a store, on disk and at a URL."""

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from vitreous.bulk.store import Store


@pytest.fixture
def like_s3(monkeypatch):
    """Between the path and the range, s3fs has a version."""
    plain = MemoryFileSystem.cat_file

    def cat_file(self, path, version_id=None, start=None, end=None):
        assert version_id is None
        return plain(self, path, start=start, end=end)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    yield "memory://in-parts"
    MemoryFileSystem().rm("/in-parts", recursive=True)


def test_a_part_of_a_file_is_read_alone(like_s3, tmp_path):
    for where in (like_s3, str(tmp_path / "disk")):
        store = Store.of(where)
        with store.writing("some/lines") as file:
            file.write(b"first\nsecond\nthird\n")
        assert store.read("some/lines", 6, 13) == b"second\n"
