"""The encoders that ship with the package, by name: `vitreous.load("vitreous-s")`, `--from vitreous-s`."""

from pathlib import Path

ENCODERS = Path(__file__).parent.parent / "encoders"


def shipped() -> tuple[str, ...]:
    """Their names, the smallest first; none where the package was built without them."""
    found = [folder for folder in ENCODERS.glob("*") if (folder / "model.safetensors").is_file()]
    return tuple(folder.name for folder in sorted(found, key=_num_bytes))


def shipped_folder(name: str) -> Path | None:
    return ENCODERS / name if name in shipped() else None


def megabytes(name: str) -> float:
    return _num_bytes(ENCODERS / name) / 1e6


def _num_bytes(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size
