"""What a run was made with: versions, hardware, commit, command."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from vitreous.weights.own import versions


def environment() -> dict[str, Any]:
    """As plain JSON. What cannot be found out is None."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "versions": versions(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "gpu_driver": _gpu_driver(),
        **_commit(Path(__file__).resolve().parents[3]),
    }


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _gpu_driver() -> str | None:
    try:
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0].partition(":")[2].strip()
    except (OSError, IndexError):
        return None


def _commit(checkout: Path) -> dict[str, Any]:
    """The commit of the package's own checkout, if it runs from one."""
    unknown = {"commit": None, "uncommitted_changes": None}
    if not (checkout / ".git").exists():
        return unknown
    try:
        commit, changes = (
            subprocess.run(
                ["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return unknown
    return {"commit": commit, "uncommitted_changes": bool(changes)}
