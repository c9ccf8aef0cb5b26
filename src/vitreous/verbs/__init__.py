"""One file a verb. Each has HELP, `add(parser)` and `run(options)`, parses and prints, and holds no logic.

torch is imported inside `run`, so that every `--help` is quick. A verb whose `TAKES_SETTINGS` is true is also handed
the dotted settings it was given, as text: `run(options, changes)`, and prints its own help (`options.help`).
"""

# name -> module, in the order of `vitreous --help`
VERBS = {
    "fit": "fit",
    "list": "listing",
    "train": "train",
    "finetune": "finetune",
    "teach": "teach",
    "evaluate": "evaluate",
    "inspect": "inspect",
    "predict": "predict",
    "serve": "serve",
    "export": "export",
    "study": "study",
    "convert": "convert",
    "demo": "demo",
}
