"""vitreous selftrain"""

import argparse

from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet
from vitreous.verbs.recipes import SETTINGS_HELP, add_recipe, named_recipe

HELP = "Learn from few labels and many pictures, by rounds of teacher and noised student (Noisy Student); resumes."
TAKES_SETTINGS = True


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Teacher, labels and students are saved in --out; more --rounds may follow later. Without --unlabelled, the "
        f"training pictures beyond --data.train_limit are used without their labels. {SETTINGS_HELP}"
    )
    add_recipe(parser, "the student's recipe")
    parser.add_argument("--unlabelled", metavar="DATA", help="pictures without labels: a folder, or any data set")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="rounds of labelling and learning (default: 3)"
    )
    parser.add_argument(
        "--teacher", metavar="RUN", help="the first teacher (default: the recipe on the labels alone, trained first)"
    )
    parser.add_argument(
        "--labels",
        choices=("soft", "hard"),
        default="soft",
        help="what is learned: a teacher's probabilities, or its decisions (default: soft)",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.3,
        metavar="P",
        help="least confidence for a label to be used (default: 0.3)",
    )
    parser.add_argument(
        "--per-class", type=int, metavar="N", help="use at most this many pictures of each class, the most confident"
    )
    parser.add_argument(
        "--ratio", type=float, default=3.0, metavar="R", help="pictures without labels per labelled one (default: 3)"
    )
    parser.add_argument("--out", metavar="DIR", help="the folder for all runs (default: runs/RECIPE-rounds)")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace, changes: dict[str, str]) -> None:
    recipe = named_recipe(options, changes, what="selftrain needs the student's recipe")
    if recipe is None:
        return
    if options.rounds < 1:
        raise UserError(f"--rounds is {options.rounds}: it must be at least 1")
    from vitreous.jobs.selftrain import selftrain
    from vitreous.teaching.pseudo import PseudoSettings
    from vitreous.terminal import quietly
    from vitreous.training.devices import World
    from vitreous.verbs.evaluate import scores_line

    out = options.out or f"runs/{recipe.name}-rounds"
    pseudo = PseudoSettings(
        labels=options.labels, confidence=options.confidence, per_class=options.per_class, ratio=options.ratio
    )
    with quietly(options.quiet):
        results = selftrain(
            recipe, out, unlabelled=options.unlabelled, teacher=options.teacher, rounds=options.rounds, pseudo=pseudo
        )
    if not World.join(recipe.training.device).is_first:
        return
    for name, found in results.items():
        for part in ("val", "test"):
            if part in found:
                print(f"{name:10} {part:5} {scores_line(found[part])}")
    print(f"Saved to {out}: the teacher, the labels, and the student of every round")
