"""Starts from the hub: the table against the libraries, the choice by cost, and a server that plays the hub."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from hub_server import COMMIT
from vitreous.fitting import starts
from vitreous.fitting.starts import SHARE, STARTS, Found, Work, affordable, best_start
from vitreous.models import ViTSettings
from vitreous.models.flops import flops
from vitreous.models.shapes import shapes_only

TINY = "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"
SMALL = "timm:vit_small_patch16_224.augreg_in21k_ft_in1k"
DINO = "hf:facebook/dinov2-small"
CODE = """
import json, sys
from dataclasses import replace
from vitreous.fitting import starts
pictures, seconds, revision, constants = json.loads(sys.argv[1])
for name, value in constants.items():
    setattr(starts, name, value)
said = []
work = starts.Work(kind="cpu", threads=2, num_pictures=pictures, seconds=seconds, gmacs=74.0)
if revision is not None:
    starts.STARTS = tuple(replace(start, revision=revision) for start in starts.STARTS)
found = starts.best_start(work, said.append)
assert "torch" not in sys.modules
print(json.dumps([found.where, found.why, said]))
"""


def work(num_pictures, seconds, kind="cpu"):
    return Work(kind=kind, threads=2, num_pictures=num_pictures, seconds=seconds)


def shape_of(start):
    """Width, patch: what the name says."""
    width = {"tiny": 192, "small": 384, "base": 768}[next(n for n in ("tiny", "small", "base") if n in start.where)]
    return width, 14 if "dinov2" in start.where else 16


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.where)
def test_the_table_is_true(start):
    timm = pytest.importorskip("timm")
    width, patch = shape_of(start)
    dino = {192: None, 384: "vit_small_patch14_dinov2.lvd142m", 768: "vit_base_patch14_dinov2.lvd142m"}[width]
    name = start.where.removeprefix("timm:") if start.where.startswith("timm:") else dino
    known = timm.get_pretrained_cfg(name)
    assert known.hf_hub_id.startswith("timm/") and known.license == start.licence
    with torch.device("meta"):
        peer = timm.create_model(name)
    counted = sum(one.numel() for one in peer.parameters())
    # transformers' DINOv2 has a mask token besides, which timm's has not.
    assert start.parameters == counted + (width if patch == 14 else 0)
    assert start.megabytes == pytest.approx(4 * counted / 1e6, rel=0.01)
    with shapes_only():
        encoder = ViTSettings(picture_px=(224, 224), patch=patch, width=width, depth=12, heads=width // 64).build()
    assert start.gmacs == pytest.approx(flops(encoder) / 2e9, rel=0.02)


def test_what_a_start_suits_is_what_it_costs():
    for start in STARTS[1:]:
        pictures = int(start.suits.partition("2 cores: ")[2].partition(" pictures")[0].replace(",", ""))
        assert start.seconds(work(pictures, 240), is_cached=False) == pytest.approx(SHARE * 240, rel=0.03)


@pytest.mark.parametrize(
    ("asked", "best"),
    [
        (work(300, 240), DINO),
        (work(600, 240), SMALL),
        (work(1000, 240), TINY),
        (work(12_000, 240), None),
        (work(12_000, 3600), SMALL),
        (work(12_000, 240, "cuda"), DINO),
        (work(12_000, 600, "cuda"), "hf:facebook/dinov2-base"),
    ],
)
def test_the_budget_decides(asked, best):
    assert [start.where for start in affordable(asked)][:1] == ([best] if best else [])


def test_without_the_extra_nothing_is_asked_and_one_line_says_what_it_would_bring(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("socket.socket.connect", lambda *words: pytest.fail("the network was touched"))
    assert best_start(work(600, 240), say=pytest.fail) == Found(
        None,
        "with pip install 'vitreous[hub]' it could start from "
        "timm:vit_small_patch16_224.augreg_in21k_ft_in1k (88 MB, 22.1 M parameters, licence apache-2.0)",
    )


def test_what_the_extra_would_bring_with_more_time(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert best_start(work(100_000, 240)).why.startswith(
        f"with pip install 'vitreous[hub]' and more time it could start from {TINY} (23 MB"
    )


def test_too_little_time_to_download(monkeypatch):
    monkeypatch.setattr("vitreous.weights.hub.in_cache", lambda where: None)
    monkeypatch.setattr("vitreous.weights.hub.is_offline", lambda: False)
    found = best_start(replace(work(10, 10), gmacs=74.0), say=pytest.fail)
    assert found == Found(None, "no start from the hub: 10 s are too short to download one")


def test_a_busy_machine_is_measured(monkeypatch):
    monkeypatch.setattr("vitreous.weights.hub.in_cache", lambda where: None)
    monkeypatch.setattr("vitreous.weights.hub.is_offline", lambda: False)
    busy = work(3000, 240)
    assert affordable(busy)
    real = starts._measured_gmacs()
    assert 0 < real < 10_000
    monkeypatch.setattr(starts, "_measured_gmacs", lambda: 7.4)  # ten times slower than with nothing else to do
    assert best_start(busy).why == (
        f"no start from the hub: {TINY}, the smallest, would take 507 s of 240 s to read 3,000 pictures once"
    )


def test_it_never_raises(monkeypatch):
    def broken(where):
        raise RuntimeError("one\ntwo")

    monkeypatch.setattr("vitreous.weights.hub.in_cache", broken)
    assert best_start(replace(work(600, 240), gmacs=74.0)) == Found(None, *2 * ("no start from the hub: one",))


@pytest.fixture
def chosen(play, tmp_path):
    weights = {"model.safetensors": play.repositories["owner/model"]["model.safetensors"], "config.json": b"{}"}
    play.repositories |= {"timm/" + where.removeprefix("timm:"): weights for where in (SMALL, TINY)}
    pytest.importorskip("huggingface_hub")

    def run(num_pictures, seconds, revision=None, constants=None, **environment):
        asked = json.dumps([num_pictures, seconds, revision, constants or {}])
        ended = subprocess.run(
            [sys.executable, "-c", CODE, asked],
            env=play.environment(tmp_path / "home") | environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
        assert "%|" not in ended.stderr  # no bars
        return json.loads(ended.stdout.splitlines()[-1])

    return run


def test_it_says_what_it_downloads_and_uses_the_cache(play, chosen):
    where, why, said = chosen(1000, 240)
    assert where == f"{TINY}@{COMMIT}"  # what was resolved
    assert said == [f"Downloading {TINY} (23 MB, 5.7 M parameters, licence apache-2.0)"]
    assert why == f"{TINY} (23 MB, 5.7 M parameters, licence apache-2.0), suits 2 cores: 3,300 pictures in 4 minutes"
    play.asked.clear()
    assert chosen(1000, 240) == [where, why, []]
    assert not play.asked
    # The better one for fewer pictures is not in the cache, and the hub is not to be asked, or says nothing.
    assert chosen(600, 240, HF_HUB_OFFLINE="1") == [where, why, []]
    assert not play.asked
    play.silent = "HEAD"
    where, why, said = chosen(600, 240, constants={"PATIENCE_S": 0.5})
    assert where == f"{TINY}@{COMMIT}" and len(said) == 1
    assert why.endswith(f"; from the cache, as {SMALL}@main: the hub sent nothing for 0.5 s; try again later")


def test_a_revision_is_taken_and_recorded(play, chosen):
    where, _, _ = chosen(1000, 240, "v1")
    assert where == f"{TINY}@{'b' * 40}"
    where, why, _ = chosen(1000, 240, "v9")
    assert where is None and why == f"{TINY}@v9: has no such revision"


def test_silence_is_given_up(play, chosen):
    play.silent = "body"
    where, why, said = chosen(1000, 240, constants={"PATIENCE_S": 0.5})
    assert where is None and len(said) == 1
    assert why == f"{TINY}@main: the hub sent nothing for 0.5 s; try again later"


def test_a_slow_download_does_not_take_the_budget(play, chosen):
    play.silent = "body"
    where, why, _ = chosen(12, 4, constants={"PATIENCE_S": 60, "DOWNLOAD_MB_S": 1000})
    assert where is None and why == f"{SMALL}: not downloaded within 1 s"


def test_a_hub_that_cannot_be_reached_is_said_to_be_and_nothing_to_be_downloaded(play, chosen):
    away = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert chosen(1000, 240, **away) == [None, "the hub cannot be reached", []]
    where, _, _ = chosen(1000, 240)
    found, why, said = chosen(600, 240, **away)
    assert (found, said) == (where, []) and why.endswith("; from the cache, as the hub cannot be reached")


def test_offline_without_a_cache(play, chosen):
    where, why, said = chosen(1000, 240, HF_HUB_OFFLINE="1")
    assert (where, said) == (None, []) and not play.asked
    assert why == "no start from the hub: HF_HUB_OFFLINE is set, and the cache has none"
