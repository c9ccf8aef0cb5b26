"""The page of models that look inside windows, or from fine squares at coarse ones."""

import io

import numpy as np
import pytest
import torch
from person import Person, visit
from PIL import Image
from running import Running, save_model, unpacked

from browser import chromium, chromium_page  # noqa: F401 - fixtures
from vitreous.inspection.attention import attention
from vitreous.models import PVTSettings, SwinSettings
from vitreous.prediction.torch_predictor import TorchPredictor

SWIN = SwinSettings(picture_px=(36, 48), patch=4, width=8, depths=(2, 1), heads=(1, 2), window=4)  # maps 9 x 12, 5 x 6
REDUCED = {"widths": (8, 12), "depths": (1, 1), "heads": (1, 2), "mlp_factors": (2, 2), "reductions": (4, 1)}
PVT = PVTSettings(picture_px=(32, 32), generation="v1", **REDUCED)


@pytest.fixture(scope="module")
def families(tmp_path_factory, chromium):  # noqa: F811 - without a browser nothing else need start
    top = tmp_path_factory.mktemp("families")
    folders = [save_model(top / "swin", model=SWIN), save_model(top / "pvt", model=PVT)]
    running = Running(*folders)
    yield running, folders
    assert running.stop() == 0
    assert running.errors == ""


def grey(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (120, 120, 120)).save(stream, "png")
    return stream.getvalue()


def choose(person: Person, name: str, value: int) -> None:
    person.part(name).evaluate(f"one => {{ one.value = {value}; one.dispatchEvent(new Event('input')); }}")


def reds(person: Person, columns: int, rows: int, high: float) -> np.ndarray:
    """Of the middle of every square of the stage."""
    return np.array(
        person.part("stage").evaluate(
            """(canvas, [columns, rows, high]) => {
                const { width, height } = canvas, found = [];
                const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
                for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {
                    const x = Math.floor(((column + 0.5) / columns) * width);
                    const y = Math.floor((row + 0.5) * high * height);
                    found.push(data[4 * (y * width + x)]);
                }
                return found;
            }""",
            [columns, rows, high],
        )
    ).reshape(rows, columns)


def test_windows_on_the_page(chromium_page, families):  # noqa: F811
    running, (folder, _) = families
    person = visit(chromium_page, running)
    data = grey(48, 36)
    person.wait_for_attention(lambda: person.drop("grey.png", data))
    assert person.text("layer-is") == "3 of 3" and "Each square is a word: 30 of them" in person.text("read")
    assert person.text("readout").startswith("In stage 2, block 1 (windows of 4 x 4), all squares together look")
    assert person.part("no-rollout").is_visible() and "cannot be multiplied" in person.text("no-rollout")
    assert person.panel.locator("[value=rollout]").is_disabled()
    choose(person, "layer", 2)
    assert "Each square is a word: 108 of them" in person.text("read")
    person.part("stage").focus()
    for key in ("ArrowRight", *["ArrowRight"] * 4, *["ArrowDown"] * 3):  # row 4, column 5
        person.page.keyboard.press(key)
    predictor = TorchPredictor.load(folder)
    (looks,) = attention(predictor.task.encoder, predictor.inputs(data), [2], rows=[3 * 12 + 4]).weights
    expected = looks[0, 0, 0].view(9, 12).numpy()
    rows, columns = np.nonzero(expected)
    assert (set(rows), set(columns)) == ({2, 3, 4, 5}, {2, 3, 4, 5})  # a window, shifted
    row, column = np.unravel_index(expected.argmax(), (9, 12))
    where = "itself" if (row, column) == (3, 4) else f"row {row + 1}, column {column + 1}"
    assert f"the square in row 4, column 5 looks most at {where} (" in person.text("readout")
    assert "evenly spread in its window it would be 6.3 %" in person.text("readout")
    red = reds(person, 12, 9, 1 / 9)
    bare = red[expected == 0]
    assert np.ptp(bare) <= 1, "outside the window nothing is coloured"
    others = (expected > 0) & ~((np.arange(9)[:, None] == 3) & (np.arange(12) == 4))
    slope, start = np.polyfit(expected[others], red[others], 1)
    assert slope < 0
    np.testing.assert_allclose(red[others], start + slope * expected[others], atol=1.5)
    choose(person, "layer", 3)  # the same place, among larger squares
    assert "the square in row 2, column 3 looks" in person.text("readout")
    assert person.opened.problems == []


def test_fine_squares_look_at_coarse_ones(chromium_page, families):  # noqa: F811
    running, (_, folder) = families
    person = Person(visit(chromium_page, running).opened, panel=1)
    data = grey(32, 32)
    person.wait_for_attention(lambda: person.drop("grey.png", data))
    assert "It looks at the underlined ones." in person.text("read")
    assert "the class token, which gathers the prediction, looks" in person.text("readout")
    choose(person, "layer", 1)
    person.part("stage").focus()
    person.page.keyboard.press("ArrowRight")  # the first square
    predictor = TorchPredictor.load(folder)
    (looks,) = attention(predictor.task.encoder, predictor.inputs(data), [1], rows=[0]).weights
    most = int(looks[0, 0, 0].argmax())
    assert "It looks at larger squares than these." in person.text("read")
    assert f"at the larger square in row {most // 2 + 1}, column {most % 2 + 1} (" in person.text("readout")
    assert f"({round(100 * float(looks.max()))} %; evenly spread it would be 25 %)" in person.text("readout")
    assert person.opened.problems == []


def test_what_is_sent_of_windows(families):
    running, (folder, _) = families
    asked = running.client.post("/v1/attention", content=grey(48, 36), headers={"content-type": "image/png"})
    header, arrays = unpacked(asked.content)
    predictor = TorchPredictor.load(folder)
    images = predictor.inputs(grey(48, 36))
    assert [layer["grouped"] for layer in header["layers"]] == [
        "windows of 4 x 4",
        "windows of 4 x 4, shifted",
        "windows of 4 x 4",
    ]
    for number, layer in enumerate(header["layers"], start=1):
        cells = layer["looking"]["grid"][0] * layer["looking"]["grid"][1]
        expected = attention(predictor.task.encoder, images, [number], rows=range(cells)).weights[0][0]
        weights = arrays[f"weights_{number}"] / 255 * arrays[f"scale_{number}"][..., None]
        found = torch.zeros_like(expected)
        for group, (queries, keys) in enumerate(
            zip(arrays[f"queries_{number}"], arrays[f"keys_{number}"], strict=True)
        ):
            rows, columns = np.flatnonzero(queries >= 0), np.flatnonzero(keys >= 0)
            for head in range(layer["heads"]):
                part = torch.tensor(weights[head, group][np.ix_(rows, columns)], dtype=torch.float32)
                found[head][np.ix_(queries[rows], keys[columns])] = part
        torch.testing.assert_close(found, expected, atol=0.003, rtol=0)
