"""Archives made to hurt (tar, zip, parquet), as data and as weights: nothing is written outside the directory that was
given, nothing is run, and whatever cannot be read is said in one line."""

import io
import os
import tarfile
from functools import cache, partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from scenes import encoded, scene
from stress.campaign import Campaign, Facts
from stress.scenarios import recipe_file
from stress.warm import Command
from weights import hostile

FULL = 73
PICTURES = [encoded(scene(number, (28, 28))) for number in range(16)]


# ---- tar


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def member(name: str, data: bytes = b"", size: int | None = None, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data) if size is None else size
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


GOOD = [member(f"{'ab'[number % 2]}/{number}.png", data) for number, data in enumerate(PICTURES)]
OUTSIDE = "../../outside"


def with_header(info: tarfile.TarInfo, data: bytes = b"") -> bytes:
    """A header as it is, whatever it says, and whole pictures after it."""
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512) + tar_of(GOOD)


def tars() -> dict[str, bytes]:
    links = {"symlink": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE}
    devices = {"device": tarfile.CHRTYPE, "block": tarfile.BLKTYPE, "pipe": tarfile.FIFOTYPE}
    named = {
        "climbs": f"{OUTSIDE}.png",
        "absolute": "/tmp/outside.png",
        "climbs as a class": f"{OUTSIDE}/x.png",
        "of dots": "../..",
        "with lines": "a/x\ny\r.png",
        "not UTF-8": "a/\udcff\udcfe.png",
        "long": "a/" + "x" * 5000 + ".png",
        "deep": "a/" * 3000 + "x.png",
        "hidden climb": "a/../../../outside/x.png",
        "terminal codes": "a/\x1b[2J.png",
    }
    whole = tar_of(GOOD)
    found = {f"name: {what}": tar_of([*GOOD, member(name, PICTURES[0])]) for what, name in named.items()}
    for what, kind in links.items():
        for target in (OUTSIDE, "/etc/passwd"):
            found[f"{what} to {target}"] = tar_of([*GOOD, member("a/l.png", type=kind, linkname=target)])
    found |= {what: tar_of([*GOOD, member("a/d.png", type=kind)]) for what, kind in devices.items()}
    found |= {
        "size: 64 GB": with_header(member("a/x.png", size=2**36)[0]),
        "size: a label of 64 GB": with_header(member("a.cls", size=2**36)[0]),
        "size: a header of 64 GB": with_header(member("a", size=2**36, type=tarfile.XHDTYPE)[0]),
        "size: negative": with_header(member("a/x.png", size=-512)[0]),
        "pax: says other sizes": tar_of([*GOOD, member("a/x.png", PICTURES[0], pax_headers={"size": "999999999999"})]),
        "pax: not numbers": with_header(member("x", size=11, type=tarfile.XHDTYPE)[0], b"11 size=ab\n"),
        "sparse": tar_of([*GOOD, member("a/x.png", PICTURES[0], pax_headers={"GNU.sparse.size": str(2**40)})]),
        "bomb inside": tar_of([*GOOD, member("a/x.png", encoded(scene(0, (2, 2))) * 1000)]),
        "names twice": tar_of(GOOD + GOOD),
        "cut in a picture": whole[: len(whole) // 2],
        "cut in a header": whole[:700],
        "zeros": bytes(10240),
        "no tar": b"words " * 400,
        "nothing": b"",
    }
    return {f"tar: {what.replace('/', '_')}.tar": data for what, data in found.items()}


# ---- parquet


def parquet_of(columns: dict[str, object]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def parquets() -> dict[str, bytes]:
    cells = [{"bytes": data, "path": None} for data in PICTURES]
    labels = [number % 2 for number in range(len(cells))]
    whole = parquet_of({"image": cells, "label": labels})

    def with_path(path: str) -> bytes:
        return parquet_of({"image": [*cells, {"bytes": None, "path": path}], "label": [*labels, 0]})

    found = {f"path {path}": with_path(path) for path in ("/etc/passwd", "/dev/zero", f"{OUTSIDE}.png", "a\nb")}
    found |= {
        "cut": whole[: len(whole) // 2],
        "footer of 4 GB": whole[:-8] + b"\xff\xff\xff\xff" + whole[-4:],
        "footer of nothing": whole[:-8] + bytes(4) + whole[-4:],
        "beginning alone": b"PAR1",
        "no parquet": b"PAR1" + b"words" * 100 + b"PAR1",
        "pictures of numbers": parquet_of({"image": labels, "label": labels}),
        "labels of bytes": parquet_of({"image": cells, "label": PICTURES}),
        "labels out of range": parquet_of({"image": cells, "label": [2**40 + one for one in labels]}),
        "no rows": parquet_of({"image": cells[:0], "label": pa.array([], pa.int64())}),
    }
    return {f"parquet: {what.replace('/', '_')}.parquet": data for what, data in found.items()}


# ---- zip: of data, which is refused; and of weights, which is what zips are here


def zips(canary: Path) -> dict[str, bytes]:
    data = {"zip: pictures.zip": hostile.zip_bytes({f"a/{i}.png": one for i, one in enumerate(PICTURES)})}
    data["zip: climbs.zip"] = hostile.zip_bytes({f"{OUTSIDE}.png": PICTURES[0]})
    weights = {f"weights: {name}": content for name, content in hostile.archives(canary).items()}
    return data | {name: content for name, content in weights.items() if "many-members" not in name}


@cache
def archive(number: int, canary: Path) -> tuple[str, bytes]:
    """The zips, which take a while to make, only where one is asked for."""
    found = list((tars() | parquets()).items())
    if number >= len(found):
        found += zips(canary).items()
        assert len(found) == FULL
    return found[number]


def trial(number: int, folder: Path, shared: Path) -> Facts:
    inside, out, canary = folder / "a" / "b", folder / "out", shared / "canary"
    inside.mkdir(parents=True)
    name, content = archive(number, canary)
    path = inside / name.partition(": ")[2]
    path.write_bytes(content)
    before = _everything(folder)
    if name.startswith("weights"):
        words = ["convert", str(path), str(out)]
    else:
        words = ["train", str(recipe_file(shared, "supervised")), "--quiet", "--out", str(out)]
        words += ["--data.where", str(path), "--data.max_unreadable", "5", "--training.steps", "2"]
        words += ["--training.batch_size", "4", "--data.val_fraction", "0.2", "--data.test_fraction", "0.2"]
    ended = Command(words, shared / "said" / "archive", before=partial(os.chdir, inside)).wait(60)
    lines = [line for line in ended.errors.splitlines() if not line.startswith("note: ")]
    read = ended.code == 0 and not lines
    refused = ended.code == 2 and len(lines) == 1 and lines[0].startswith("vitreous: ") and len(lines[0]) < 1000
    assert read or refused, ended
    assert "\x1b" not in ended.errors, "codes for a terminal are passed on"
    written = [path for path in _everything(folder) - before if not path.startswith(str(out))]
    assert not written, f"written outside: {written}"
    assert not Path("/tmp/outside.png").exists() and not canary.exists()
    return {"kind": name.partition(":")[0], "became": "read" if read else "refused"}


def _everything(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


CAMPAIGN = Campaign(
    name="archives",
    promise="hostile tar, zip and parquet: nothing is written outside or run; one line",
    full=FULL,
    trial=trial,
    short=(0, 18),
)
