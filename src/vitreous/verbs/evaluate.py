"""vitreous evaluate"""

import argparse

HELP = "Score a run on the test part of its data, or of other data."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("start", metavar="RUN", help="a finished run, or a folder of weights")
    parser.add_argument("data", nargs="?", metavar="DATA", help="other data with the same classes")
    parser.add_argument("--split", choices=("train", "val", "test"), default="test", help="which part (default: test)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> None:
    from vitreous.jobs import evaluate

    scores = evaluate(options.start, options.data, options.split, options.device)
    if options.json:
        import json

        print(json.dumps(scores))
    else:
        print(f"{options.split:5} {scores_line(scores)}")


def scores_line(scores: dict[str, float]) -> str:
    shares = "   ".join(f"{name} {scores[name]:.2%}" for name in ("accuracy", "top5") if name in scores)
    return f"{shares}   log-loss {scores['log_loss']:.4f}   ({scores['pictures']:,.0f} pictures)"
