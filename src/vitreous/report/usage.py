"""What to do with the model: commands that work as they stand."""

import shlex
from typing import Any

from vitreous.fitting.fitted import Fitted
from vitreous.report.html import Html, command, paragraph, tag, together
from vitreous.report.kinds import kind_of


def section(result: Fitted[Any]) -> Html:
    run = shlex.quote(str(result.out))
    options, lines = kind_of(result).usage(result)
    python = f"""\
from vitreous import Predictor

predictor = Predictor.load({str(result.out)!r})
outcome = predictor("picture.jpg")
{lines}"""
    uses = (
        ("Use it on pictures", f"vitreous predict {run} picture.jpg{options}"),
        ("Measure it again, or on other pictures of the same classes", f"vitreous evaluate {run}"),
        ("Look inside", f"vitreous inspect {run} picture.jpg"),
        ("Teach it other classes", f"vitreous finetune {run} FOLDER_OF_PICTURES"),
        ("Take it elsewhere, as an ONNX file with a certificate", f"vitreous export {run} --to onnx"),
        ("Serve it, with a page to try it on", f"vitreous serve {run}"),
    )
    return together(
        [together(paragraph(what, class_="use"), command(words)) for what, words in uses],
        paragraph("From Python", class_="use"),
        command(python),
        paragraph(
            "Paths are as given when this page was written. The run is in ",
            tag.code(str(result.out.absolute())),
            ".",
            class_="note",
        ),
    )
