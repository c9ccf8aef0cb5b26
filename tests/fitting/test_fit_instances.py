"""Pictures with shapes of objects from end to end: fit, its report, evaluate, predict, export with its certificate."""

import io
import json
from contextlib import redirect_stdout

import pytest
from PIL import Image

from instances import rendered
from vitreous.commands import account_for
from vitreous.data.box_files import BoxedPicture, coco_document
from vitreous.data.runs import Runs
from vitreous.data.sources import DataSettings
from vitreous.export.job import export
from vitreous.fitting.budget import Pace
from vitreous.fitting.drafts import Problem
from vitreous.fitting.fit import ending, fit
from vitreous.fitting.instance_drafts import InstanceDrafts
from vitreous.fitting.wishes import Hardware, Wishes
from vitreous.jobs.evaluate import evaluate
from vitreous.prediction.instance_outcomes import InstanceOutcome
from vitreous.prediction.predictor import Predictor

TINY = {
    "data.layout.targets": "instances",
    "model.picture_px": "48,48",
    "model.width": "24",
    "model.depth": "1",
    "model.heads": "2",
    "objective.width": "16",
    "objective.mlp_width": "16",
    "objective.heads": "2",
    "objective.decoder_depth": "1",
    "objective.pixel.mask_width": "16",
    "objective.pixel.mlp_width": "16",
    "training.epochs": "2",
    "training.device": "cpu",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Some drawn pictures as a COCO folder with runs of pixels."""
    root = tmp_path_factory.mktemp("shapes")
    (root / "annotations").mkdir()
    for split, num in {"train": 24, "val": 8, "test": 8}.items():
        source, pictures = rendered(split, num), []
        (root / split).mkdir()
        for index in range(num):
            Image.fromarray(source.read(index)).save(root / split / f"{index}.png")
            found, size = source.targets.of(index), tuple(source.targets.sizes[index].tolist())
            shapes = [Runs.of(shape, size) for shape in source.targets.shapes(index)]
            pictures.append(BoxedPicture(f"{index}.png", size, found.boxes, found.classes, shapes=shapes))
        document = coco_document(pictures, source.classes)
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(document))
    return root


@pytest.fixture(scope="module")
def ran(folder, tmp_path_factory):
    """The fit, and what it said."""
    with redirect_stdout(io.StringIO()) as said:
        result = fit(str(folder), tmp_path_factory.mktemp("runs") / "fit", start="none", changes=TINY)
    account_for(result)
    return result, said.getvalue()


@pytest.fixture(scope="module")
def fitted(ran):
    return ran[0]


def test_time_is_kept_for_the_masks_of_validation_pictures(fitted):
    data = fitted.data
    drafts = InstanceDrafts(Problem(data, DataSettings(), Hardware(kind="cpu", name="one"), Wishes(changes={})))
    kept = drafts.budget(60.0, Pace(step_s=1.0, start_s=0.0, picture_s=0.01), 0.0)
    assert kept.after_s == pytest.approx(7 + 0.06 * (3 * data.size("val") + data.size("test")))
    assert data.size("val") > 0, "each takes six times as long as the model alone"


def test_no_first_model_is_promised_and_not_made(ran):
    result, said = ran
    assert result.first_models == ()
    assert "from frozen features\nnone: the whole model has to learn" in said


def test_shapes_are_fitted_as_asked_and_measured(fitted):
    task, decoder = (next(one for one in fitted.plan.choices if one.name == name) for name in ("task", "decoder"))
    assert task.value == "instances" and decoder.value == "mask2former, 30 queries"
    assert fitted.evaluation.by == "masks" and "Test AP" in ending(fitted, 60.0)
    page = (fitted.out / "report.html").read_text()
    assert "AP of masks" in page and "one.shape.area" in page
    found = evaluate(fitted.out, device="cpu").evaluation
    assert found.scores == fitted.evaluation.scores and found.calibration == fitted.evaluation.calibration


@pytest.mark.slow  # torch traces it
def test_exported_with_a_certificate_of_its_masks(fitted, folder, tmp_path):
    made = export(fitted.out, check=str(folder), num_checks=6, out=tmp_path / "shapes.onnx")
    agreement = made.certificate["agreement"]
    assert agreement["object_agreement"] > 0.99 and agreement["largest_mask_difference"] < 0.02
    assert agreement["AP_eager"] == pytest.approx(agreement["AP_exported"], abs=1e-6)
    picture = folder / "test" / "3.png"
    ours, theirs = (Predictor.load(where)(picture) for where in (fitted.out, made.path))
    assert isinstance(theirs, InstanceOutcome) and len(theirs.shapes) == len(ours.shapes) > 0
    assert ours.shapes[0].overlap(theirs.shapes[0]) > 0.99
