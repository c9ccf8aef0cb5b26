import signal
import subprocess
import sys

import pytest

from vitreous.conversion.convert import convert
from vitreous.data.transforms import Preprocessing
from vitreous.models import ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

# Ended in the midst of writing: by a request that Python hears of, or without one.
ENDED = """
import os, sys
from vitreous import cli
from vitreous.weights import own, writing
own.save_file = writing.save_file = lambda *words, **options: os.kill(os.getpid(), int(sys.argv[1]))
cli.main(["convert", *sys.argv[2:4], "--to", sys.argv[4]])
"""


@pytest.mark.parametrize("to", ["vitreous", "timm"])
def test_what_an_ended_conversion_left_goes_by_itself_or_with_the_next(tmp_path, to):
    model = ViTSettings(picture_px=(32, 32), patch=16, width=64, depth=1, heads=1)
    task = ClassifySettings().build(model.build(), ("a", "b"))
    card = Card(model=model, task=ClassifySettings(), classes=("a", "b"), preprocessing=Preprocessing(size_px=(32, 32)))
    Trained(card, task.state_dict(), "made").save(tmp_path / "start")
    words = (str(tmp_path / "start"), str(tmp_path / "out"), to)
    for number, code, left in ((signal.SIGTERM, 143, 0), (signal.SIGKILL, -signal.SIGKILL, 1)):
        ended = subprocess.run([sys.executable, "-c", ENDED, str(int(number)), *words], check=False)
        assert ended.returncode == code
        assert len(list(tmp_path.iterdir())) == 1 + left and not (tmp_path / "out").exists()
    convert(*words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "start"]
