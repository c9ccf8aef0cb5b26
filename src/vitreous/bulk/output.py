"""Output: rows in a folder, while they are written and when they are complete.

OUT/manifest.json                  the model and what was asked, with its own sha256; and `done` once no row is missing
OUT/plan.jsonl                     the parts, one per line (`parts`)
OUT/rows/part-00000012-rows-4096-failed-3.parquet      the rows of one part, in the order of the pictures

The file names show the progress: no file need be opened to resume. Sorted by name, their rows are in the order of the
inputs.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from vitreous.bulk.parts import Part, from_line, to_line
from vitreous.bulk.store import Store
from vitreous.errors import UserError

FORMAT = 1
MANIFEST, PLAN, ROWS, BEGUN = "manifest.json", "plan.jsonl", "rows", "begun"
NAME = re.compile(r"part-(?P<part>\d{8,})-rows-(?P<rows>\d+)-failed-(?P<failed>\d+)\.parquet")


@dataclass(frozen=True)
class Written:
    """The rows of a part."""

    part: int
    rows: int
    failed: int  # how many of them have an error instead of a result

    @property
    def name(self) -> str:
        return f"{ROWS}/part-{self.part:08}-rows-{self.rows}-failed-{self.failed}.parquet"


@dataclass(frozen=True)
class Plan:
    sha256: str
    starts: "array[int]"  # where the line of each part begins, and where the last ends

    def __len__(self) -> int:
        return len(self.starts) - 1


class Output:
    def __init__(self, where: str) -> None:
        self.where, self.store = where, Store.of(where)

    # ---- what it is about

    def manifest(self) -> dict[str, Any] | None:
        if not self.store.has(MANIFEST):
            return None
        with self.store.reading(MANIFEST) as file:
            try:
                found = dict(json.load(file))
                digest = found.pop("sha256", None)  # earlier versions wrote none
                if digest is not None and digest != _digest(found):
                    raise ValueError
                if found["format"] != FORMAT:
                    raise UserError(
                        f"{self.where}/{MANIFEST}: format {found['format']}, and this version reads {FORMAT}"
                    )
            except (ValueError, KeyError, TypeError):
                raise UserError(
                    f"{self.where}/{MANIFEST}: damaged; run the command that wrote it again, with another --out"
                ) from None
        return found

    def write_manifest(self, about: Mapping[str, Any]) -> None:
        document = {"format": FORMAT, **about}
        with self.store.writing(MANIFEST) as file:
            file.write((json.dumps({**document, "sha256": _digest(document)}, indent=2) + "\n").encode())

    # ---- the plan

    def write_plan(self, parts: Iterable[Part], like: str | None = None) -> Plan:
        """`like`: the digest of the plan that was written before; a different plan is refused, and not written."""
        with self.store.writing(PLAN) as file:
            planned = _planned(parts, file)
            if like is not None and planned.sha256 != like:
                raise UserError(
                    f"{self.where}: began with other pictures: some were added, removed or changed; choose another "
                    "--out"
                )
        return planned

    def has_plan(self, sha256: str) -> bool:
        """Whether this plan is there, intact."""
        if not self.store.has(PLAN):
            return False
        with self.store.reading(PLAN) as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest() == sha256

    @staticmethod
    def planned(parts: Iterable[Part]) -> Plan:
        """The plan without writing it."""
        return _planned(parts, None)

    def parts(self) -> Iterator[Part]:
        """The parts of the written plan, in order."""
        with self.store.reading(PLAN) as file:
            yield from map(from_line, file)

    def part(self, start: int, end: int) -> Part:
        """The part whose line is at these bytes."""
        return from_line(self.store.read(PLAN, start, end))

    # ---- rows

    def written(self) -> dict[int, Written]:
        """By part. If a part was written twice, also by a worker presumed dead, one of them is removed."""
        found: dict[int, Written] = {}
        for match in filter(None, map(NAME.fullmatch, self.store.names(ROWS))):
            one = Written(*(int(match[name]) for name in ("part", "rows", "failed")))
            if one.part in found:
                self.store.remove(one.name)
            else:
                found[one.part] = one
        return found

    def write(self, number: int, table: pa.Table, part: Part, fingerprint: str) -> Written:
        """`fingerprint`: of the model that computed the results."""
        done = Written(number, table.num_rows, table.num_rows - table["error"].null_count)
        marked = table.replace_schema_metadata({"of": _mark(part, fingerprint)})
        with self.store.writing(done.name) as file:
            pq.write_table(marked, file, compression="zstd", write_page_checksum=True)
        return done

    def first_failed(self) -> tuple[str, str] | None:
        """The name of the first picture without a result, and why."""
        for _, one in sorted(self.written().items()):
            if one.failed:
                with self.store.reading(one.name) as file:
                    table = pq.ParquetFile(_in_arrow(file)).read(columns=["name", "error"])
                row = table.filter(table["error"].is_valid()).slice(0, 1).to_pylist()[0]
                return row["name"], row["error"]
        return None

    # ---- parts that kill their workers

    def begin(self, part: int, tries: int) -> bool:
        """Marks every start of a part; False if it was started `tries` times already."""
        for number in range(tries):
            name = f"{BEGUN}/part-{part:08}-{number}"
            if not self.store.has(name):
                with self.store.writing(name):
                    return True
        return False

    def end(self, part: int) -> None:
        number = 0
        while self.store.has(name := f"{BEGUN}/part-{part:08}-{number}"):
            self.store.remove(name)
            number += 1

    def forget_begun(self) -> None:
        """Removes the marks: a new command tries everything again."""
        for name in self.store.names(BEGUN):
            self.store.remove(f"{BEGUN}/{name}")

    # ---- when it is done

    def tables(self) -> Iterator[pa.Table]:
        """Part by part, in order; a UserError if the work is not done, or a file is damaged."""
        about = self.manifest()
        if about is None or not about.get("done"):
            raise UserError(f"{self.where}: its rows are incomplete; run the same command again to finish it")
        written = self.written()
        if lost := about["plan"]["parts"] - len(written):
            raise UserError(
                f"{self.where}: {lost} of its files are missing; run the same command again to restore them"
            )
        if not self.has_plan(about["plan"]["sha256"]):
            raise UserError(f"{self.where}/{PLAN}: damaged; the same command writes it again")
        for number, part in enumerate(self.parts()):
            one = written[number]
            with self.store.reading(one.name) as file:
                try:
                    table = pq.ParquetFile(_in_arrow(file), page_checksum_verification=True).read()
                    of = (table.schema.metadata or {}).get(b"of")  # earlier versions wrote none
                    if of is not None and of.decode() != _mark(part, about["model"]["fingerprint"]):
                        raise ValueError("rows of another part, or of another model")
                except Exception as error:  # pyarrow may raise anything
                    raise UserError(
                        f"{self.where}/{one.name}: damaged ({error}); remove it, and run the command again"
                    ) from None
            yield table


def _in_arrow(file: BinaryIO) -> pa.BufferReader:
    """The contents in pyarrow's own memory: a thread of pyarrow's that lets go of a Python object, file or bytes, while
    the program ends would abort it."""
    copied = pa.BufferOutputStream()
    copied.write(file.read())
    return pa.BufferReader(copied.getvalue())


def _mark(part: Part, fingerprint: str) -> str:
    """A digest by which a file in place of another is noticed."""
    return hashlib.sha256(f"{fingerprint} {to_line(part)}".encode()).hexdigest()[:16]


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _planned(parts: Iterable[Part], file: BinaryIO | None) -> Plan:
    digest, starts = hashlib.sha256(), array("q", [0])
    for part in parts:
        line = (to_line(part) + "\n").encode()
        digest.update(line)
        starts.append(starts[-1] + len(line))
        if file is not None:
            file.write(line)
    return Plan(digest.hexdigest(), starts)
