"""Every study: its quick settings make valid cells; and some of them, run to their end on tiny pictures."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_sets import MOVED, SIDE, SMALL, write_set

from vitreous import settings
from vitreous.cli import main
from vitreous.data.opening import same_data
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.recipes.recipe import Recipe
from vitreous.studies import STUDIES, find_study
from vitreous.studies.data_size import FIXED, DataSize, chosen_regularisation
from vitreous.studies.downstream import distinct_slugs, without_overlap
from vitreous.studies.grid import Grid
from vitreous.studies.head import Head, best_rates
from vitreous.studies.models import STUDY_MODELS, size_of, study_model
from vitreous.studies.optimizer import OptimizerChoice
from vitreous.studies.positions import Positions
from vitreous.studies.scaling import ALL_SIZES, Scaling, transfer_means
from vitreous.studies.study import TransferStudy, run_study, spread
from vitreous.studies.transfer import Transfer
from vitreous.verbs import VERBS


@pytest.fixture
def pictures(tmp_path):
    return write_set(tmp_path / "pictures")


@pytest.mark.parametrize("name", STUDIES)
def test_quick_settings_make_valid_cells(name, pictures, tmp_path):
    own = {"pretrain": pictures, "data": "none", "tasks": (f"pets={pictures}",)} if name == "transfer" else {}
    moved = {"transfer": ()} if issubclass(find_study(name), TransferStudy) else {}
    study = find_study(name).quick(**{"data": pictures, **moved, **own})
    grid = run_study(study, tmp_path / "study", minutes=0)
    assert grid.left
    assert grid.rows == []
    assert len({cell.name for cell in grid.left}) == len(grid.left)
    for cell in grid.left:
        if cell.recipe is not None:
            assert settings.from_json(Recipe, json.loads(json.dumps(settings.to_json(cell.recipe)))) == cell.recipe
            with torch.device("meta"):
                cell.recipe.model.build()
    assert settings.changed(study, {"seeds": "5"}).seeds == 5


@pytest.mark.parametrize("name", [*STUDY_MODELS, "vit_ti16", "r26_vit_s32", "bit_r50x1", "swin_t"])
def test_models_of_studies(name):
    px = 32 if name in STUDY_MODELS else 64
    found = study_model(name, px)
    families = {"vit": "ViT", "resnet": "ResNet", "bit": "ResNet", "swin": "Swin", "pvt": "PVT", "convnext": "ConvNeXt"}
    assert found.family == families.get(name.replace("_", "-").split("-")[0], "hybrid") == found.settings.family
    flops = size_of(found.settings)[1] / 3  # of a forward pass, with which the model shows that it runs
    alike = {"s": 0.16e9, "m": 0.42e9, "l": 0.84e9}.get(name[-1], flops) if name in STUDY_MODELS else flops
    assert 0.9 * alike < flops < 1.35 * alike  # a size costs about the same in every family


def test_pyramids_for_patches_of_any_size():
    steps = {patch: study_model("swin-t", 4 * patch, patch).settings.patch for patch in (1, 2, 4, 7, 16)}
    assert steps == {1: 1, 2: 1, 4: 2, 7: 2, 16: 8}


def test_a_mistyped_name():
    with pytest.raises(UserError, match="Did you mean vit-s"):
        study_model("vit-ss", 32)
    with pytest.raises(UserError, match="Did you mean scaling"):
        find_study("scalin")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("data-size", {"regularisations": "mediun"}, "--regularisations: no 'mediun' among .* Did you mean medium"),
        ("data-size", {"fractions": "0.00001"}, "--fractions 1e-05: none of .* pictures; give a larger share"),
        ("data-size", {"fractions": "0,1"}, "--fractions is 0: it must be above 0"),
        ("data-size", {"fractions": "1.5"}, "--fractions is 1.5: it is a share, at most 1"),
        ("data-size", {"models": ""}, "--models is empty"),
        ("positions", {"kinds": "lerned"}, "--kinds: no 'lerned' among .* Did you mean learned"),
        ("positions", {"places": "stam"}, "--places: no 'stam' among .* Did you mean stem"),
        ("positions", {"seeds": "0"}, "--seeds is 0: it must be above 0"),
        ("positions", {"val_fraction": "-0.1"}, "--val_fraction is -0.1: it must not be negative"),
        ("positions", {"base": "vit-tt"}, "Did you mean vit-t"),
        ("scaling", {"lengths": "100,-5"}, "--lengths is -5: it must be above 0"),
        ("scaling", {"models": "vit-t,vit-t"}, "--models has vit-t twice"),
        ("optimizer", {"models": "resnet-tt"}, "Did you mean resnet-t"),
        ("resolution", {"sizes_px": "28,30"}, "30.*patch"),
    ],
)
def test_settings_that_no_cell_can_be_made_of(name, changes, message, pictures, tmp_path):
    moved = {"transfer": ()} if issubclass(find_study(name), TransferStudy) else {}
    study = settings.changed(find_study(name).quick(data=pictures, **moved), changes)
    with pytest.raises(UserError, match=message):
        run_study(study, tmp_path / "study", minutes=0)


def test_what_a_study_does_not_use_is_neither_listed_nor_taken(capsys):
    for name, unused in (("data-size", "weight_decay"), ("optimizer", "rate"), ("scaling", "steps"), ("cost", "seeds")):
        main(["study", name, "--help"])
        assert f"--{unused} " not in capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(["study", name, f"--{unused}", "1"])
        assert f"--{unused}: {name} does not use it" in capsys.readouterr().err


def test_a_study_without_any_result_ends_with_an_error(pictures, tmp_path, capsys):
    words = [word for name, value in (SMALL | {"kinds": "none"}).items() for word in (f"--{name}", str(value))]
    command = ["study", "positions", pictures, "--quick", "--out", str(tmp_path / "out"), *words]
    with pytest.raises(SystemExit) as ended:  # all of the training pictures are held out
        main([*command, "--val_fraction", "1"])
    assert isinstance(ended.value.code, str)  # printed, and exit status 1
    assert "no cell has a result" in ended.value.code
    assert "1 cell failed" in capsys.readouterr().out
    assert "val_fraction" in (tmp_path / "out/results.csv").read_text()


def test_positions_from_the_command_line(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(VERBS, "study", "study")
    out = tmp_path / "out"
    small = {**SMALL, "seeds": 2, "kinds": "none"}
    words = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    for _ in range(2):  # the second time, nothing is left to do
        main(["study", "positions", pictures, "--quick", "--out", str(out), *words])
        told = capsys.readouterr().out
        assert "none" in told
        assert "results.csv" in told
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["positions"], row["seed"]) for row in rows] == [("none", "0"), ("none", "1")]
    assert (out / "positions.png").stat().st_size > 5000
    assert (out / "positions.svg").is_file()
    main(["study", "positions", "--help"])
    assert "--places" in capsys.readouterr().out
    main(["study", "--help"])
    assert "data-size" in capsys.readouterr().out


def test_data_size_to_its_end(pictures, tmp_path):
    other = write_set(tmp_path / "other", seed=1)
    study = replace(
        DataSize.quick(data=pictures, shots=2, **SMALL, **MOVED),
        models=("vit-t",),
        fractions=(0.4,),
        transfer=(other,),
        seeds=2,
    )
    grid = run_study(study, tmp_path / "study")
    assert not [row for row in grid.rows if "failed" in row]
    chosen = chosen_regularisation(grid.rows, study.regularisations)
    assert chosen.keys() == {("vit-t", 0.4)}
    for (model, fraction), name in chosen.items():
        tried = [row for row in grid.rows if row["fraction"] == fraction and row["seed"] == 0 and "val_accuracy" in row]
        assert max(row["val_accuracy"] for row in tried) == next(
            row["val_accuracy"] for row in tried if row["regularisation"] == name
        )
        # Only what is fixed or chosen has read the test set, with every seed; and the chosen was fine-tuned.
        tested = {(row["regularisation"], row["seed"]) for row in grid.rows
                  if row["fraction"] == fraction and "accuracy" in row and "target" not in row}  # fmt: skip
        assert tested == {(one, seed) for one in (FIXED, name) for seed in (0, 1)}
        moved = [row for row in grid.rows if row["fraction"] == fraction and row.get("target") == other]
        assert [(row["model"], row["regularisation"], row["seed"]) for row in moved] == [
            (model, name, 0),
            (model, name, 1),
        ]
    assert all("few_shot" in row for row in grid.rows if row["regularisation"] == FIXED and "target" not in row)
    assert {file.name for file in (tmp_path / "study").glob("*.png")} == {"figure3.png", "figure4.png"}
    part = settings.load(Recipe, tmp_path / f"study/vit-t-0.4-{FIXED}-seed0/recipe.json").data
    assert len(part.build().train) == round(0.4 * len(replace(part, train_fraction=1.0).build().train))


def test_one_regularisation_alone_is_the_chosen_one(pictures, tmp_path):
    study = replace(
        DataSize.quick(data=pictures, **SMALL, **MOVED), models=("vit-t",), fractions=(1.0,), regularisations=("light",)
    )
    grid = run_study(study, tmp_path / "study")
    assert [row["cell"] for row in grid.rows if "accuracy" in row] == [
        "vit-t-1-medium-seed0",  # Figure 4's
        "vit-t-1-light-seed0-test",
    ]
    better = [row | {"val_accuracy": float(row["regularisation"] == FIXED)} for row in grid.rows]
    assert chosen_regularisation(better, study.regularisations) == {("vit-t", 1.0): "light"}
    drawn = study.figures(better)
    accuracies = {row["regularisation"]: row["accuracy"] for row in grid.rows if "accuracy" in row}
    for name, which, title in (
        ("figure3", "light", "regularisation light"),
        ("figure4", FIXED, "regularisation fixed"),
    ):
        (panel,) = drawn[name].axes
        assert title in panel.get_title()
        assert panel.lines[0].get_ydata() == pytest.approx([accuracies[which]])
    (found,) = study.findings(better)
    assert found.endswith(f"regularisation light: vit-t {100 * accuracies['light']:.2f} %")


def test_scaling_to_its_end(pictures, tmp_path):
    other = write_set(tmp_path / "other", seed=1)
    study = replace(
        Scaling.quick(data=pictures, **SMALL, **MOVED),
        models=("vit-t",),
        lengths=(1, 2, 4),
        transfer=(other,),
        transfer_steps=1,
    )
    grid = run_study(study, tmp_path / "study")
    own = [row for row in grid.rows if "target" not in row]
    assert [row["pretraining_flops"] for row in own] == [row["training_flops"] for row in own]
    assert own[2]["pretraining_flops"] == 4 * own[0]["pretraining_flops"]
    assert len(transfer_means(grid.rows, 1)) == 3
    assert len(study.findings(grid.rows)) == 2
    assert (tmp_path / "study/figure5.png").is_file()
    (drawn,) = study.figures(grid.rows).values()
    assert [panel.get_title() for panel in drawn.axes] == [f"tested on {pictures}", f"fine-tuned on {other}"]


def test_scaling_draws_every_family_and_those_it_never_heard_of():
    names = [*(name for name in ALL_SIZES if name.endswith("-s")), "igpt_s"]
    rows = [
        {**study_model(name, 32).facts, "seed": 0, "accuracy": 0.5 + 0.1 * n, "pretraining_flops": 10.0 ** (12 + n)}
        for name in names
        for n in range(4)
    ]
    study = Scaling(transfer=())
    (drawn,) = study.figures(rows).values()
    words = words_of(drawn)
    assert all(name in words for name in names)
    assert set(study.curves(rows)) == {row["family"] for row in rows} >= {"Swin", "PVT", "ConvNeXt", "iGPT"}
    colours = {line.get_color() for line in drawn.axes[0].lines if len(line.get_xdata()) == 100}  # the fitted ones
    assert len(colours) == len(names)
    all_sizes = [{**rows[0], "model": name, "seed": seed} for name in ALL_SIZES for seed in (0, 1)]
    (drawn,) = study.figures(all_sizes).values()
    drawn.canvas.draw()
    (legend,) = drawn.legends
    assert legend.get_window_extent().height < drawn.bbox.height  # however many models there are


def words_of(drawn):
    legends = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
    return " ".join([*legends, *(ax.get_xlabel() for ax in drawn.axes)]).replace("\n", " ")


def test_figures_explain_their_bars_and_all_their_points():
    explained = "standard deviation over the seeds"
    for seeds in (1, 2):
        numbers = [{"seed": seed, "accuracy": 0.5 + 0.01 * seed} for seed in range(seeds)]
        of_models = {**study_model("vit-t", 28).facts, "fraction": 1.0, "regularisation": FIXED, "val_accuracy": 0.5}
        by_study = {
            DataSize(transfer=()): of_models,
            Scaling(transfer=()): of_models | {"pretraining_flops": 1e12},
            Positions(): {"positions": "none", "place": "-"},
        }
        for study, facts in by_study.items():
            for drawn in study.figures([facts | one for one in numbers]).values():
                assert (explained in words_of(drawn)) == (seeds > 1)
    rows = [
        {"positions": kind, "place": place, "seed": 0, "accuracy": 0.5}
        for kind, place in (("none", "-"), ("learned", "stem"), ("relative", "-"))
    ]
    (drawn,) = Positions().figures(rows).values()
    (ax,) = drawn.axes
    assert len(ax.lines) == 3 * len(ax.containers) == 9  # a point and the two ends of its bar: nothing without a name
    for name in ("no positions", "added to the patches", "within the attention"):
        assert name in words_of(drawn)


def test_transfer_sweeps_and_means(pictures, tmp_path):
    other = write_set(tmp_path / "other", seed=1)
    study = replace(
        Transfer.quick(**SMALL),
        data="none",
        tasks=(f"pets={other}", f"again:natural={pictures}", f"dsprites-location={other}"),
        pretrain=pictures,
        examples=20,
        mode="sweep",
        sweep_rates=(0.1, 0.01),
        sweep_steps=(1,),
        transfer_batch=8,
        finetune_px=SIDE,
    )
    grid = run_study(study, tmp_path / "study")
    assert not [row for row in grid.rows if "failed" in row]
    tried = [row for row in grid.rows if row.get("task") == "pets" and "val_accuracy" in row]
    (reported,) = [row for row in grid.rows if row.get("task") == "pets" and "accuracy" in row]
    assert len(tried) == 2
    assert reported["rate"] == max(tried, key=lambda row: row["val_accuracy"])["rate"]
    # What it was pre-trained on is no task; 16 of the 20 examples train while choosing, and then all of them.
    assert {row["task"] for row in grid.rows if "task" in row} == {"pets", "dsprites-location"}
    recipes = [settings.load(Recipe, tmp_path / "study" / row["cell"] / "recipe.json") for row in (tried[0], reported)]
    assert [len(recipe.data.build().train) for recipe in recipes] == [16, 20]
    told = " ".join(study.findings(grid.rows))
    assert "mean of natural" in told
    assert "mean of structured" in told
    assert recipes[1].augmentation.flip > 0
    structured = next(row for row in grid.rows if row.get("group") == "structured")
    assert settings.load(Recipe, tmp_path / "study" / structured["cell"] / "recipe.json").augmentation.flip == 0


def test_names_that_tell_apart():
    assert distinct_slugs(["a/pets", "hf:x/vit-b", "rendered:count"]) == {
        "a/pets": "pets",
        "hf:x/vit-b": "vit-b",
        "rendered:count": "rendered-count",
    }
    assert list(distinct_slugs(["o_f1/model", "o_rt/model/", "other"]).values()) == [
        "o_f1-model",
        "o_rt-model",
        "other",
    ]
    assert list(distinct_slugs(["x/a/model", "x/b/model", "y/b/model", "model"]).values()) == [
        "a-model",
        "x-b-model",
        "y-b-model",
        "model",
    ]


def test_models_and_sets_in_folders_of_one_name(pictures, tmp_path):
    small = {**SMALL, **MOVED, "transfer": (write_set(tmp_path / "a/set", 1), write_set(tmp_path / "b/set", 2))}
    study = replace(Scaling.quick(data=pictures, **small), models=("vit-t",), lengths=(1,))
    grid = run_study(study, tmp_path / "study")
    assert [row["cell"].partition("-to-")[2] for row in grid.rows] == ["", "a-set", "b-set"]
    for place in ("one/model", "two/model"):
        shutil.copytree(tmp_path / "study/vit-t-1-seed0", tmp_path / place)
    moved = replace(
        Transfer.quick(**SMALL),
        data="none",
        tasks=(f"pets={small['transfer'][0]}",),
        start=(str(tmp_path / "one/model"), str(tmp_path / "two/model")),
        transfer_steps=1,
        examples=20,
        finetune_px=SIDE,
    )
    assert [row["start"] for row in run_study(moved, tmp_path / "moved").rows] == ["one-model", "two-model"]


def test_one_set_by_two_paths_is_one_set(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.move(f"{pictures}/train", "unsplit")
    assert same_data("unsplit", str(tmp_path / "unsplit"))
    assert not same_data("unsplit", "fashion")
    assert not without_overlap(
        "unsplit", (str(tmp_path / "unsplit"), "./unsplit/"), tmp_path / "overlap.json"
    ).leave_out
    task = (f"again:natural={tmp_path / 'unsplit'}", f"other:natural={write_set(tmp_path / 'other')}")
    study = replace(Transfer.quick(**SMALL), data="none", tasks=task, pretrain="unsplit", examples=20)
    left = run_study(study, tmp_path / "study", minutes=0).left
    assert [cell.facts.get("task") for cell in left] == [None, "other"]
    assert not left[0].recipe.data.leave_out


def test_pretraining_pictures_that_a_downstream_test_set_holds_are_dropped(pictures, tmp_path):
    other = write_set(tmp_path / "other", seed=1)
    shutil.copy(Path(pictures) / "train/light/3.png", Path(other) / "test/dark/99.png")
    found = without_overlap(pictures, (other,), tmp_path / "overlap.json")
    assert [(where, number) for where, number, _ in found.sets] == [(other, 1)]
    train = DataSettings(where=pictures, leave_out=found.leave_out, val_fraction=0.0).build().train
    assert len(train) == 39
    assert not any(train.where(index).endswith("train/light/3.png") for index in range(39))
    assert without_overlap(pictures, (other,), tmp_path / "overlap.json") == found
    grid = Grid(tmp_path / "study", {}, minutes=0)
    Scaling.quick(data=pictures, **SMALL, **{**MOVED, "transfer": (other,)}).run(grid)
    assert grid.about["dropped_from_pretraining"] == {other: 1}
    assert grid.left[0].recipe.data.leave_out == found.leave_out


def test_rates_are_chosen_on_validation_pictures(pictures, tmp_path):
    for study in (
        replace(Head.quick(data=pictures, **SMALL), rates=(1e-3, 1e-2)),
        replace(OptimizerChoice.quick(data=pictures, **SMALL, **MOVED), adam_rates=(1e-3,), sgd_rates=(0.1,)),
    ):
        grid = run_study(study, tmp_path / study.name)
        assert not [row for row in grid.rows if "failed" in row]
        assert {row["seed"] for row in grid.rows if "accuracy" in row} == {1}
        assert {row["seed"] for row in grid.rows if "accuracy" not in row} == {0}
    rows = [
        {"pool": "mean", "rate": rate, "seed": seed, "val_accuracy": accuracy}
        for rate, seed, accuracy in ((0.1, 0, 0.5), (0.2, 0, 0.7), (0.3, 0, 0.6), (0.4, 1, 0.9))
    ]
    assert best_rates(rows) == {"mean": 0.2}


def test_data_size_says_who_is_best_where():
    accuracies = {("vit-s", 0.1): 0.6, ("resnet-s", 0.1): 0.8, ("vit-s", 1.0): 0.9, ("resnet-s", 1.0): 0.85}
    rows = [
        {
            **study_model(model, 32).facts,
            "fraction": fraction,
            "regularisation": FIXED,
            "seed": seed,
            "val_accuracy": 0.5,
            "accuracy": accuracy + 0.01 * seed,
        }
        for (model, fraction), accuracy in accuracies.items()
        for seed in (0, 1)
    ]
    first, second = DataSize(data="x").findings(rows)
    assert first.startswith("10 % of x")
    assert first.endswith("resnet-s 80.50 %, vit-s 60.50 %")
    assert second.endswith("vit-s 90.50 %, resnet-s 85.50 %")


def test_a_mean_says_over_how_many_seeds_it_is():
    assert [spread([]), spread([0.5]), spread([0.5, 0.6])] == ["-", "50.00 %", "55.00 % ± 7.07 (2 seeds)"]
