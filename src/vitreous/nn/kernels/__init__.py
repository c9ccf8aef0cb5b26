"""What torch has no fused form of. Each kernel has a plain form, which is its meaning and runs everywhere; modules with
Triton code are imported where a CUDA tensor asks for them, so that nothing needs Triton before."""

from importlib.util import find_spec


def is_available() -> bool:
    """Whether Triton is installed: torch brings it on Linux with CUDA, and nowhere else."""
    return find_spec("triton") is not None
