"""Zero-shot: names become an ordinary classifier, which is what the two towers say, and is used as any other."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from captions import PX, draw_captions, pairs, shrunk_words
from vitreous.cli import main
from vitreous.commands import predict
from vitreous.errors import UserError
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.models.text import TextSettings
from vitreous.prediction.naming import AS_THEY_ARE, TEMPLATES, parse_classes, parse_templates, sentences
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.prediction.zero_shot import zero_shot
from vitreous.recipes.finetune import finetune
from vitreous.recipes.words import flickr8k_clip, flickr8k_siglip
from vitreous.serve.served_torch import TorchServed
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained
from vitreous.words.pairs import train_tokenizer

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Barely trained: enough to be used."""
    folder = tmp_path_factory.mktemp("towers")
    table = draw_captions(folder / "data", splits=(("train", 24), ("val", 8), ("test", 8)))
    recipe = shrunk_words(flickr8k_clip(start=None), table, steps=3)
    train(replace(recipe, training=replace(recipe.training, batch_size=8)), folder / "run", read_test=False)
    return folder / "run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures under their colours, in two splits."""
    root = tmp_path_factory.mktemp("colours")
    for split in ("train", "test"):
        for number, name in enumerate(COLOURS):
            (root / split / name).mkdir(parents=True)
            for index in range(4):
                Image.fromarray(pairs().picture(number * 4 + index, PX)).save(root / split / name / f"{index}.png")
    return root


@pytest.mark.parametrize("templates", [TEMPLATES, AS_THEY_ARE])
def test_the_classifier_says_what_both_towers_say(run, templates):
    trained = Trained.load(run)
    model, tokenizer = trained.task(), trained.tokenizer()
    task = zero_shot(trained, COLOURS, templates).task()
    images = torch.randn(3, 3, PX, PX)
    with torch.no_grad():
        rows = [model.embed_texts(torch.from_numpy(tokenizer(sentences(name, templates)))) for name in COLOURS]
        directions = torch.nn.functional.normalize(torch.stack([row.mean(dim=0) for row in rows]), dim=1)
        expected = model.log_scale.exp() * model.embed_pictures(images) @ directions.T
        torch.testing.assert_close(task.predict(images).logits, expected)


def test_names_go_into_sentences():
    assert sentences("cat", ("a photo of a {}", "{}")) == ["a photo of a cat", "cat"]
    assert sentences("an old cat", ("a photo of a {}", "{}", "look: {}!")) == [
        "a photo of a old cat",
        "an old cat",
        "look: an old cat!",
    ]
    assert sentences("the cat", ("a photo of the {}.", "My {}", "extra {}")) == [
        "a photo of the cat.",
        "My cat",
        "extra the cat",
    ]


def test_names_and_templates_as_they_are_typed(tmp_path):
    assert parse_classes('a cat, "a dog, black",') == ("a cat", "a dog, black")
    assert parse_classes("a\rb,c") == ("a", "b", "c")
    (tmp_path / "names.txt").write_text("cat, black\n\ndog\n")
    assert parse_classes(str(tmp_path / "names.txt")) == ("cat, black", "dog")
    assert parse_templates(None) == TEMPLATES and parse_templates("none") == AS_THEY_ARE
    assert parse_templates("a {};the {}") == ("a {}", "the {}")
    assert parse_templates("a {} and/or a part of it") == ("a {} and/or a part of it",)  # not a path
    with pytest.raises(UserError, match="not a list of names"):
        parse_classes('a cat, "a dog, black')  # which would be one name
    assert parse_classes("x" * 5000) == ("x" * 5000,)  # no file can be called so
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a text file"):
        parse_classes(str(tmp_path / "binary"))


@pytest.mark.parametrize(
    ("classes", "templates", "words"),
    [
        (["one"], TEMPLATES, "at least 2"),
        (["a", "b", "a"], TEMPLATES, "twice"),
        (["a", "b"], ["no"], "needs {}"),
        (["a", "b"], [], "an empty list"),
        ("cat", TEMPLATES, "'cat' is one text; a list"),
        (["a", "b"], "a {}", "'a {}' is one text; a list"),
    ],
)
def test_what_makes_no_classifier_is_refused(run, classes, templates, words):
    with pytest.raises(UserError, match=words):
        zero_shot(Trained.load(run), classes, templates)


def test_a_model_without_words_says_so(run, tmp_path):
    with pytest.raises(UserError, match="has no text tower"):
        zero_shot(Trained.load("vitreous-xs"), COLOURS)
    with pytest.raises(UserError, match="--classes"):
        TorchPredictor.load(run)
    loaded = TorchPredictor(zero_shot(Trained.load(run), COLOURS), "cpu")
    with pytest.raises(UserError, match="has its own"):
        predict(loaded, np.zeros((8, 8, 3), np.uint8), classes=("x", "y"))


def test_predict_evaluate_and_convert(run, folder, tmp_path, capsys):
    picture = folder / "test" / "red" / "0.png"
    main(["predict", str(run), str(picture), "--classes", ",".join(COLOURS), "--json"])
    (said,) = json.loads(capsys.readouterr().out)
    assert said["label"] in COLOURS
    main(["convert", str(run), str(tmp_path / "classifier"), "--classes", ",".join(COLOURS)])
    assert "3 classes" in capsys.readouterr().out
    written = predict(tmp_path / "classifier", picture)[0]
    spoken = predict(run, picture, classes=COLOURS)[0]
    np.testing.assert_allclose(written.probabilities, spoken.probabilities, atol=1e-6)
    assert said["probability"] == pytest.approx(max(written.probabilities), abs=1e-4)

    # Fine-tuned, it begins with what it knows, though a folder numbers its classes otherwise.
    recipe = finetune(str(tmp_path / "classifier"), str(folder), PX, steps=1)
    train(replace(recipe, optimizer=replace(recipe.optimizer, lr=0.0)), tmp_path / "tuned", read_test=False)
    tuned = predict(tmp_path / "tuned", picture)[0]
    np.testing.assert_allclose(tuned.probabilities, written.probabilities, atol=1e-6)
    shutil.copytree(folder, other := tmp_path / "other")
    for split in ("train", "test"):
        (other / split / "red").rename(other / split / "pink")
    recipe = finetune(str(tmp_path / "classifier"), str(other), PX, steps=1)
    train(recipe, tmp_path / "anew", read_test=False)
    assert Trained.load(tmp_path / "anew").card.classes == ("blue", "green", "pink")

    named = ["--classes", ",".join(COLOURS), "--labelled", str(folder)]
    main(["convert", str(run), str(tmp_path / "calibrated"), *named])
    assert Trained.load(tmp_path / "calibrated").card.temperature != 1
    capsys.readouterr()
    main(["predict", str(run), str(picture), *named, "--coverage", "0.9", "--json"])
    (sure,) = json.loads(capsys.readouterr().out)
    assert sure["label"] == said["label"] and sure["probability"] != said["probability"]
    with pytest.raises(SystemExit):
        main(["predict", str(run), str(picture), "--classes", "x,y", "--labelled", str(folder)])
    assert "its class 'blue' is not among the names that were given (x, y)" in capsys.readouterr().err

    main(["evaluate", str(run), str(folder), "--zero-shot", "--templates", "a {} thing", "--json"])
    measured = json.loads(capsys.readouterr().out)["evaluation"]
    assert measured["scores"]["pictures"] == 12 and measured["validation_pictures"] == 12  # of train: calibrated on it
    assert 0 <= measured["scores"]["top1"]["value"] <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["convert", "{run}", "{out}", "--classes", ""], "classes: 0 given"),
        (["convert", "{run}", "{out}", "--classes", " , "], "classes: 0 given"),
        (["convert", "{run}", "{out}", "--templates", "a {{}}"], "are for --classes"),
        (["convert", "{run}", "{out}", "--labelled", "{data}"], "are for --classes"),
        (["predict", "{run}", "{data}", "--templates", ""], "are for --classes"),
        (["predict", "{run}", "{data}", "--classes", "a,b", "--engine", "local"], "takes a classifier"),
        (["predict", "{run}", "{data}", "--classes", "a,b", "--coverage", "0.9"], "with --labelled"),
        (["evaluate", "{run}", "{data}", "--data.layout.targets", "labels"], "not captions: --zero-shot"),
        (["evaluate", "{run}", "{data}", "--zero-shot", "--templates", ""], "templates: an empty list"),
        (["evaluate", "{run}", "{data}", "--templates", ""], "--templates are for --zero-shot"),
        (["evaluate", "{run}", "{data}", "--zero-shot", "--probe", "knn"], "leave out --probe"),
    ],
)
def test_what_is_asked_of_names_is_never_passed_over(run, folder, tmp_path, capsys, words, said):
    with pytest.raises(SystemExit):
        main([word.format(run=run, data=folder, out=tmp_path / "out") for word in words])
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and not (tmp_path / "out").exists()


def test_without_words_it_is_an_encoder_like_any_other(run, folder):
    """For whoever looks inside, embeds or probes."""
    assert TorchServed(str(run), "cpu", 1).predictor is None
    probed = evaluate(run, folder, probes=("knn",))
    assert probed.evaluation is None and 0 <= probed.probes[0].knn[0].accuracy.value <= 1


def test_retrieval_is_measured_with_its_intervals(run, tmp_path):
    found = evaluate(run, split="test").evaluation
    assert (found.pictures, found.texts, found.headline_name) == (8, 24, "recall@1")
    for one in (*found.to_texts, *found.to_pictures, *found.both):
        assert 0 <= one.low <= one.value <= one.high <= 1
    assert found.to_pictures[-1].value == 1.0  # there are fewer than ten
    assert "picture of a text" in found.summary() and found.to_json()["kind"] == "RetrievalEvaluation"
    main(["evaluate", str(run), "--figures", str(tmp_path / "figures"), "--quiet"])
    assert (tmp_path / "figures" / "recall.svg").is_file()


def test_siglips_bias_goes_with_it(tmp_path):
    """Classes by a model of which every pair is judged for itself."""
    text = TextSettings(vocabulary=560, context=8, width=16, depth=1, heads=2, attention="both", pool="last", end=559)
    recipe = flickr8k_siglip(start=None)
    settings = replace(recipe.objective, width=None, text=replace(text, projection_bias=True))
    encoder = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2)
    model = settings.build(encoder.build(), ())
    tokenizer = train_tokenizer(["red green blue"], 560, 8)
    card = Card(model=encoder, task=settings, preprocessing=replace(recipe.normalise, size_px=(8, 8)))
    trained = Trained(card, model.state_dict(), "here", words=lambda: tokenizer)
    classifier = zero_shot(trained, COLOURS)
    assert classifier.weights["head.bias"].tolist() == [-10.0] * 3 and classifier.card.task.cosine_width is None
    trained.save(tmp_path / "saved")
    assert Trained.load(tmp_path / "saved").tokenizer().document() == tokenizer.document()
