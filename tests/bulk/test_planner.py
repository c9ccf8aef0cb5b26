"""Plans are cut the same way every time, lazily, and what they say can be read, however damaged the shards are."""

import tarfile
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bulk_inputs import write_tar
from vitreous.bulk.parts import BrokenPart, FilesPart, ParquetPart, TarPart, from_line, to_line
from vitreous.bulk.planner import plan
from vitreous.bulk.worker import _ahead
from vitreous.data.images import BadPicture
from vitreous.errors import UserError


def planned(path, per_part=4):
    parts = list(plan([str(path)], per_part, path.parent))
    assert [from_line(to_line(part)) for part in parts] == parts
    return parts


def stored(parts, root):
    return [one for part in parts for one in part.stored(root)]


def write_parquet(path, rows, group):
    cells = [{"bytes": b"%d" % number, "path": None} for number in range(rows)]
    pq.write_table(pa.table({"image": cells}), path, row_group_size=group, compression="none")


@pytest.mark.parametrize(
    ("group", "cuts"), [(3, [3, 3, 4]), (2, [4, 4, 2]), (10, [4, 4, 2]), (7, [4, 3, 3]), (100, [4, 4, 2])]
)
def test_parquet_is_cut_between_row_groups_that_are_small_enough(tmp_path, group, cuts):
    write_parquet(tmp_path / "a.parquet", 10, group)
    parts = planned(tmp_path / "a.parquet")
    assert [part.count for part in parts] == cuts
    assert [one.content for one in stored(parts, tmp_path)] == [b"%d" % number for number in range(10)]
    assert stored(parts, tmp_path)[7].name == f"{tmp_path}/a.parquet:row 7"


def test_tar_is_cut_by_its_headers(tmp_path):
    """Long names have headers of their own before the one of the member."""
    members = [(f"{number:02}/{'x' * 150}.png", b"%d" % number) for number in range(10)]
    for layout in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{layout}.tar"
        write_tar(path, members, layout)
        parts = planned(path)
        assert [part.count for part in parts] == [4, 4, None]
        assert [(one.name, one.content) for one in stored(parts, tmp_path)] == [
            (f"{path}:{name}", content) for name, content in members
        ]


def test_loose_pictures_and_shards_keep_their_order(tmp_path):
    write_parquet(tmp_path / "b.parquet", 1, 1)
    for name in ("a.png", "c.png", "d.png"):
        (tmp_path / name).write_bytes(b"12")
    assert planned(tmp_path, per_part=2) == [
        FilesPart((f"{tmp_path}/a.png",), (2,)),
        ParquetPart(f"{tmp_path}/b.parquet", (tmp_path / "b.parquet").stat().st_size, "image", 0, 1),
        FilesPart((f"{tmp_path}/c.png", f"{tmp_path}/d.png"), (2, 2)),
    ]


# ---- damage


def test_a_tar_file_that_ends_too_soon(tmp_path):
    path = tmp_path / "a.tar"
    write_tar(path, [(f"{number}.png", bytes(1000)) for number in range(6)])
    path.write_bytes(path.read_bytes()[: 4 * 1536 + 600])  # in the middle of the fifth
    found = stored(planned(path), tmp_path)
    assert [one.content for one in found[:4]] == [bytes(1000)] * 4
    assert "ends before this member does" in str(found[4].content)
    assert found[5].name == str(path) and "cannot be read further" in str(found[5].content)


@pytest.mark.parametrize("per_part", [4, 6, 100])
def test_a_damaged_row_group_costs_its_rows(tmp_path, per_part):
    path = tmp_path / "a.parquet"
    write_parquet(path, 12, 4)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 20] = b"\xff" * 20
    path.write_bytes(content)
    found = stored(planned(path, per_part), tmp_path)
    assert [one.name for one in found] == [f"{path}:row {number}" for number in range(12)]
    assert [isinstance(one.content, BadPicture) for one in found] == [False] * 4 + [True] * 4 + [False] * 4


def test_what_is_no_shard_is_one_row(tmp_path):
    for name in ("a.tar", "b.parquet"):
        (tmp_path / name).write_bytes(b"nothing of the kind" * 99)
    parts = planned(tmp_path)
    assert parts[0] == TarPart(f"{tmp_path}/a.tar", 19 * 99)
    assert isinstance(parts[1], BrokenPart)
    assert ["further as an uncompressed tar" in str(one.content) for one in stored(parts, tmp_path)] == [True, False]
    assert "cannot be read as parquet" in str(stored(parts, tmp_path)[1].content)


def test_a_table_without_pictures_is_refused(tmp_path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="no image column"):
        planned(tmp_path / "a.parquet")


def test_paths_of_a_far_table_stay_beside_it(tmp_path):
    part = ParquetPart("memory://far/a.parquet", None, "image", 0, 1)
    assert part._content({"bytes": None, "path": "sub/x.png"}) == "memory://far/sub/x.png"
    for path in ("/etc/passwd", "../x.png"):
        assert isinstance(part._content({"bytes": None, "path": path}), BadPicture)


# ---- memory


def test_a_plan_looks_no_further_than_its_next_part(tmp_path):
    taken = []
    lines = (taken.append(number) or b"%d.png" % number for number in range(10**9))
    parts = plan(["-"], 5, tmp_path, lines)
    assert next(parts).names == ("0.png", "1.png", "2.png", "3.png", "4.png")
    assert len(taken) == 5


def test_no_more_is_decoded_than_will_soon_be_needed():
    begun, lock = [], threading.Lock()

    def read(one):
        with lock:
            begun.append(one)
        return BadPicture(str(one))

    found = _ahead(iter(range(1000)), read, 8)
    for number in range(1000):
        one, picture = next(found)
        assert one == number and str(picture) == str(number)
        assert len(begun) <= number + 9
