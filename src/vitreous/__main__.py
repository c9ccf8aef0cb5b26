"""The process of a command: `python -m vitreous WORDS`, or `vitreous WORDS`."""

from vitreous.signals import Process


def main(words: list[str] | None = None) -> None:
    with Process() as process:
        process.hear()
        from vitreous.cli import main as command  # takes a while

        command(words)


if __name__ == "__main__":
    main()
