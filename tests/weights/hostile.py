"""Makes files that mean harm, or are broken. Each must be refused in a line, and none may do anything.

`corpus(folder, canary)` writes them and answers their paths by name. Whatever is executed writes `canary`.
"""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save


class Runs:
    """Unpickled, it writes a file."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.system, (f"echo ran > '{self.canary}'",)


def safetensors_bytes(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape=(4,), begin=0, end=16, dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def torch_bytes(value, legacy=False):
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


def npy_bytes(array=None, shape="(4,)", descr="'<f4'", data=b"\0" * 16, more=""):
    if array is not None:
        stream = io.BytesIO()
        np.lib.format.write_array(stream, array, allow_pickle=True)
        return stream.getvalue()
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, {more}}}".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def zip_bytes(members, packed=False):
    stream = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def with_member(torch_file, name, data):
    """A PyTorch file with one member changed or more."""
    with zipfile.ZipFile(io.BytesIO(torch_file)) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    top = next(iter(members)).split("/")[0]
    return zip_bytes(members | {f"{top}/{name}": data})


def pickles(canary):
    evil = Runs(canary)
    plain = pickle.dumps({"weight": evil})
    found = {f"pickle-{number}.pkl": pickle.dumps(evil, protocol=number) for number in range(6)}
    found |= {f"pickle-as{ending}": plain for ending in (".safetensors", ".npz", ".bin", ".pth", ".pt", ".json", "")}
    found["torch-zip-runs.npz"] = torch_bytes(evil)
    found["torch-legacy-runs.safetensors"] = torch_bytes(evil, legacy=True)
    found["torch-state-and-code.pth"] = torch_bytes({"model": {"weight": torch.ones(4)}, "hook": evil})
    found["torch-second-pickle.pth"] = with_member(torch_bytes({"weight": torch.ones(4)}), "data.pkl", plain)
    found["joblib.gz"] = gzip.compress(plain)
    found["joblib.z"] = zlib.compress(plain)
    found["joblib.joblib"] = pickle.dumps([evil], protocol=4)
    found["safetensors-then-pickle.safetensors"] = save({"weight": torch.ones(4)}) + plain
    found["pickle-then-zip.npz"] = plain + zip_bytes({"weight.npy": npy_bytes(np.ones(4, np.float32))})
    found["zip-then-pickle.npz"] = zip_bytes({"weight.npy": npy_bytes(np.ones(4, np.float32))}) + plain
    found["npz-member-is-pickle.npz"] = zip_bytes({"weight.npy": plain})
    found["objects.npz"] = zip_bytes({"weight.npy": npy_bytes(np.array([evil, 1], dtype=object))})
    found["objects-in-struct.npz"] = zip_bytes({"weight.npy": npy_bytes(descr="[('a', '|O')]")})
    found["object.npy"] = npy_bytes(np.array([evil], dtype=object))
    return found


def archives(canary):
    good = npy_bytes(np.ones(4, np.float32))
    evil = pickle.dumps(Runs(canary))
    state = torch_bytes({"weight": torch.ones(4)})
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, data in {"pickle": evil, "storages": evil, "tensors": evil, "sys_info": evil}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as archive:
        archive.writestr("weight.npy", good)
        archive.filelist[0].filename = "weight.npy"
        archive.NameToInfo.clear()
        archive.writestr("weight.npy", good)
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(30_000):
            archive.writestr(f"{'x' * 30}{number}.npy", b"")
    script = {"m/data.pkl": evil, "m/code/__torch__.py": b"import os", "m/constants.pkl": evil, "m/version": b"3"}
    program = {"m/archive_format": b"pt2", "m/models/model.json": b"{}", "m/data/weights/w.pt": state}
    return {
        "legacy-tar.pth": tar.getvalue(),
        "legacy-tar.safetensors": tar.getvalue(),
        "nested.npz": zip_bytes({"inner.npz": zip_bytes({"weight.npy": good})}),
        "nested-named.npz": zip_bytes({"weight.npy": zip_bytes({"weight.npy": good})}),
        "nested.pth": with_member(state, "data/0.zip", state),
        "torchscript.pt": zip_bytes(script),
        "exported.pt2": zip_bytes(program),
        "exported-old.pt2": zip_bytes({"serialized_exported_program.json": b"{}", "version": b"1"}),
        "keras.keras": zip_bytes({"config.json": b"{}", "model.weights.h5": b"\x89HDF\r\n\x1a\n"}),
        "keras.h5": b"\x89HDF\r\n\x1a\n" + b"\0" * 100,
        "climbs.npz": zip_bytes({"../../climbed.npy": good}),
        "absolute.npz": zip_bytes({"/tmp/climbed.npy": good}),
        "climbs.pth": with_member(state, "../../climbed.py", b"import os"),
        "twice.npz": twice.getvalue(),
        "many-members.npz": many.getvalue(),
        "empty.zip": zip_bytes({}),
        "words.zip": zip_bytes({"readme.txt": b"words"}),
        "bomb.npz": zip_bytes({"weight.npy": npy_bytes(np.zeros(40_000_000, np.float32))}, packed=True),
        "bomb-of-many.npz": zip_bytes({f"{i}.npy": npy_bytes(np.zeros(2_500_000, np.float32)) for i in range(9)}, True),
        "bomb.pth": zip_bytes({"m/data.pkl": b"\x80\2}.", "m/data/0": bytes(100_000_000)}, packed=True),
        "lies-about-size.npz": zip_bytes({"weight.npy": npy_bytes(shape="(9000000000,)")}),
        "negative-shape.npz": zip_bytes({"weight.npy": npy_bytes(shape="(-1,)")}),
        "code-in-header.npz": zip_bytes({"weight.npy": npy_bytes(shape="(__import__('os').system('true'),)")}),
        "strings.npz": zip_bytes({"weight.npy": npy_bytes(np.array(["a", "b"]))}),
        "complex.npz": zip_bytes({"weight.npy": npy_bytes(np.ones(4, np.complex64))}),
        "nan.npz": zip_bytes({"weight.npy": npy_bytes(np.array([1, np.nan], np.float32))}),
        "wrong-checksum.npz": zip_bytes({"weight.npy": good}).replace(good[-16:], b"\7" * 16, 1),
        "single.npy": good,
    }


def headers():
    data = bytes(16)
    two = {"a": entry(), "b": entry(begin=8, end=24)}
    deep = b"[" * 100_000
    return {
        "header-of-100-MB.safetensors": safetensors_bytes(b"{" + b" " * 100_000_000 + b"}"),
        "header-claims-100-MB.safetensors": safetensors_bytes({"a": entry()}, data, length=100_000_000),
        "header-longer-than-file.safetensors": safetensors_bytes({"a": entry()}, data, length=5_000),
        "header-length-huge.safetensors": safetensors_bytes({"a": entry()}, data, length=2**63),
        "header-deep.safetensors": safetensors_bytes(b'{"a":' + deep, data),
        "header-no-json.safetensors": safetensors_bytes(b"{weights}", data),
        "header-not-utf8.safetensors": safetensors_bytes(b'{"\xff\xfe":1}', data),
        "header-twice.safetensors": safetensors_bytes(b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2), data),
        "header-empty.safetensors": safetensors_bytes({}),
        "offsets-overlap.safetensors": safetensors_bytes(two, bytes(24)),
        "offsets-hole.safetensors": safetensors_bytes({"a": entry(), "b": entry(begin=32, end=48)}, bytes(48)),
        "offsets-behind-the-end.safetensors": safetensors_bytes({"a": entry(begin=16, end=32)}, data),
        "offsets-negative.safetensors": safetensors_bytes({"a": entry(begin=-16, end=0)}, data),
        "offsets-backwards.safetensors": safetensors_bytes({"a": entry(begin=16, end=0)}, data),
        "offsets-text.safetensors": safetensors_bytes({"a": entry() | {"data_offsets": ["0", "16"]}}, data),
        "shape-wrong.safetensors": safetensors_bytes({"a": entry((5,))}, data),
        "shape-huge.safetensors": safetensors_bytes({"a": entry((2**62, 2**62))}, data),
        "shape-of-nothing-huge.safetensors": safetensors_bytes({"a": entry((2**62, 2**62, 0), 0, 0)}),
        "shape-negative.safetensors": safetensors_bytes({"a": entry((-2, -2))}, data),
        "shape-of-many-axes.safetensors": safetensors_bytes({"a": entry((1,) * 5000 + (4,))}, data),
        "type-unknown.safetensors": safetensors_bytes({"a": entry(dtype="OBJECT")}, data),
        "name-with-lines.safetensors": safetensors_bytes({"a\nb\rTraceback": entry()}, data),
        "name-climbs.safetensors": safetensors_bytes({"../a": entry()}, data),
        "trailing.safetensors": safetensors_bytes({"a": entry()}, data + b"more"),
        "nan.safetensors": save({"weight": torch.tensor([1.0, float("nan")])}),
        "infinity.safetensors": save({"weight": torch.full((8,), float("-inf"), dtype=torch.bfloat16)}),
    }


def tensors():
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 5]]), torch.ones(2), (10**9,), check_invariants=True)
    return {
        "sparse.pth": torch_bytes({"weight": sparse}),
        "expanded.pth": torch_bytes({"weight": torch.ones(1).expand(2_000_000_000)}),
        "nan.pth": torch_bytes({"weight": torch.tensor([float("nan")])}),
        # 1.5 million dicts, 64 bytes each, from as many bytes
        "hungry.pth": with_member(torch_bytes({}), "data.pkl", b"\x80\2" + b"}" * 1_500_000 + b"."),
    }


COLLIDING = 2**61 - 1  # all multiples of it have the same hash


def slow():
    """Small PyTorch files that would take long to unpickle."""
    tuples = ((),)
    for _ in range(60):
        tuples = (tuples, tuples)
    keys = {COLLIDING * number: None for number in range(1, 3)}
    many = pickle.dumps(dict.fromkeys(range(100_001)), protocol=2)
    # A tuple of twice the last one, 60 times, as the key of a dict: to hash it means to visit 2**60 of them.
    twice = b"".join(b"q%ch%c\x86" % (i, i) for i in range(60))
    nested = b"\x80\2})" + twice + b"Ns."
    return {
        "large-keys.pth": torch_bytes(keys),
        "tuple-keys.pth": torch_bytes({("weight", "bias"): torch.ones(1)}),
        "tuples-of-tuples.pth": with_member(torch_bytes({}), "data.pkl", nested),
        "tuples-of-tuples-legacy.pth": torch_bytes({"epoch": tuples}, legacy=True),
        "many-keys.pth": with_member(torch_bytes({}), "data.pkl", many),
        "endless.pth": with_member(torch_bytes({}), "data.pkl", b"\x80\2}" + b"N0" * 1_500_000 + b"."),
    }


def shapes_of_trouble():
    """What a PyTorch file may hold beside a dict of dense tensors."""
    loop = {}
    loop["loop"] = loop
    wide = {"weight": torch.ones(1)}
    for _ in range(14):
        wide = dict.fromkeys("abcdef", wide)
    return {
        "loop": loop,
        "more parts than can be counted": wide,
        "complex": {"weight": torch.ones(4, dtype=torch.complex64)},
        "without values": {"weight": torch.empty(4, device="meta")},
        "a tensor alone": torch.ones(4),
        "no tensors": {"epoch": 3},
        "a list": [torch.ones(4)],
        "a name twice": {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
        "a name that is none": {(1, 2): torch.ones(1)},
        "sparse": {"weight": torch.eye(4).to_sparse()},
    }


def truncated():
    """Good files of each kind, cut at 20 places."""
    whole = {
        "safetensors": save({"weight": torch.ones(64), "bias": torch.ones(8)}),
        "npz": zip_bytes({"weight.npy": npy_bytes(np.ones(64, np.float32))}),
        "pth": torch_bytes({"weight": torch.ones(64)}),
        "legacy.pth": torch_bytes({"weight": torch.ones(64)}, legacy=True),
    }
    places = {"safetensors": range(1, 11), "npz": range(1, 6), "pth": range(1, 4), "legacy.pth": range(1, 3)}
    return {
        f"cut-{i}.{kind}": data[: len(data) * i // (len(places[kind]) + 1)]
        for kind, data in whole.items()
        for i in places[kind]
    }


def folders(folder, canary):
    """Harm that comes as a folder, a link, or no plain file at all."""
    evil, good = pickle.dumps(Runs(canary)), save({"weight": torch.ones(4)})

    def make(name, files):
        (folder / name).mkdir()
        for file, data in files.items():
            (folder / name / file).write_bytes(data)

    def index(*names):
        return json.dumps({"weight_map": {f"part{i}": name for i, name in enumerate(names)}}).encode()

    make("distributed", {".metadata": evil, "__0_0.distcp": evil})
    make("tensorflow", {"saved_model.pb": b"\0"})
    make("nothing", {"readme.txt": b"words"})
    make("several", {"a.safetensors": good, "b.safetensors": good})
    make("index-climbs", {"model.safetensors.index.json": index("../several/a.safetensors")})
    make("index-absolute", {"model.safetensors.index.json": index("/etc/passwd")})
    make("index-without-files", {"model.safetensors.index.json": index("a.safetensors")})
    make("index-names-itself", {"model.safetensors.index.json": index("model.safetensors.index.json")})
    make("index-no-table", {"model.safetensors.index.json": b'{"weight_map": ["a"]}'})
    make("index-disagrees", {"model.safetensors.index.json": index("a.safetensors"), "a.safetensors": good})
    make("config-broken", {"model.safetensors": good, "config.json": b"{"})
    make("config-huge", {"model.safetensors": good, "config.json": b"[" + b"1," * 5_000_000 + b"1]"})
    make("config-deep", {"model.safetensors": good, "config.json": b"[" * 200_000})
    make("pickle-as-config", {"model.safetensors": good, "config.json": evil})
    (folder / "loop").mkdir()
    (folder / "loop" / "loop").symlink_to(folder / "loop")
    (folder / "link-to-itself.safetensors").symlink_to("link-to-itself.safetensors")
    (folder / "link-to-nothing.safetensors").symlink_to("absent")
    (folder / "link-to-zeros.safetensors").symlink_to("/dev/zero")
    (folder / "link-to-pickle.safetensors").symlink_to("pickle-4.pkl")
    make("linked", {})
    (folder / "linked" / "model.safetensors").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe.safetensors")
    names = ["distributed", "tensorflow", "nothing", "several", "index-climbs", "index-absolute"]
    names += ["index-without-files", "index-names-itself", "index-no-table", "index-disagrees", "config-broken"]
    names += ["config-huge", "config-deep", "pickle-as-config", "loop", "link-to-itself.safetensors"]
    return [
        *names,
        *(f"link-to-{what}.safetensors" for what in ("nothing", "zeros", "pickle")),
        "linked",
        "pipe.safetensors",
    ]


def odd_files():
    return {
        "empty.safetensors": b"",
        "empty.npz": b"",
        "empty.pth": b"",
        "one-byte.safetensors": b"\x80",
        "seven-bytes.safetensors": b"\1\0\0\0\0\0\0",
        "words.safetensors": b"once upon a time, a long line of words that is no header at all",
        "page.pth": b"<!doctype html><title>404</title>",
        "lfs-pointer.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
        "program.bin": b"\x7fELF" + bytes(100),
        "zeros.safetensors": bytes(5000),
        "name\nwith a line.pth": b"nothing",
    }


def corpus(folder: Path, canary: Path) -> dict[str, Path]:
    files = pickles(canary) | archives(canary) | headers() | tensors() | truncated() | odd_files()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in [*files, *folders(folder, canary), "absent.safetensors"]}
