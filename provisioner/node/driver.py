"""Is NVIDIA's driver on this machine new enough for the CUDA that the training brings?

Within a major version of CUDA any driver of the first one's age will do (minor-version compatibility). Of what the
training brings, PyTorch's own CUDA counts first, since its wheels carry it, then the image's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

LEAST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580,)}
"""CUDA's major version -> the oldest driver for all of it. Source: NVIDIA's CUDA compatibility guide."""
_TORCH = (
    "opt/conda/lib/python3*/site-packages/torch/version.py",
    "root/miniconda3/lib/python3*/site-packages/torch/version.py",
    "opt/venv/lib/python3*/site-packages/torch/version.py",
    "usr/local/lib/python3*/*-packages/torch/version.py",
    "usr/lib/python3*/*-packages/torch/version.py",
)


def mismatch(environ: Mapping[str, str], root: Path = Path("/"), ask: Callable[[], str] | None = None) -> str:
    """Return one line that names both versions where the driver is too old; empty where it is not, or nothing tells.

    ``ask`` tells the version (NVML, if it is None) where the kernel does not; empty for no driver.
    """
    driver = driver_version(root) or (ask or _nvml)()
    brought, of = cuda_version(environ, root)
    if not driver or not brought or _has_compatibility_package(root):
        return ""
    least = LEAST_DRIVER.get(int(brought.split(".")[0]))
    if least is None or _numbers(driver) >= least:
        return ""
    needed = ".".join(map(str, least))
    return f"the machine's NVIDIA driver {driver} is too old for CUDA {brought} ({of}), which needs {needed} or newer"


def driver_version(root: Path = Path("/")) -> str:
    """Return the loaded driver's version as the kernel tells it, as ``535.129.03``; empty without one."""
    with suppress(OSError):
        text = (root / "proc/driver/nvidia/version").read_text("utf-8", "replace")
        if found := re.search(r"^NVRM version:.*?\s(\d{3,}(?:\.\d+)+)\s", text, re.MULTILINE):
            return found[1]
    return ""


def cuda_version(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[str, str]:
    """Return the CUDA that the training brings, as ``12.4``, and who says so; both empty where nothing tells."""
    for pattern in _TORCH:
        for path in sorted(root.glob(pattern)):
            with suppress(OSError):
                text = path.read_text("utf-8", "replace")
                if found := re.search(r"^cuda\b.*=\s*['\"](\d+\.\d+)", text, re.MULTILINE):
                    return found[1], "PyTorch's"
    if found := re.match(r"\d+\.\d+", environ.get("CUDA_VERSION", "")):
        return found[0], "the image's"
    if found := re.search(r"cuda>=(\d+\.\d+)", environ.get("NVIDIA_REQUIRE_CUDA", "")):
        return found[1], "the image's"
    return "", ""


def _has_compatibility_package(root: Path) -> bool:
    """Say whether the image brings a newer user-mode driver of its own: which ones that serves, its runtime checks."""
    return any(root.glob("usr/local/cuda*/compat/libcuda.so.*"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _nvml() -> str:
    try:
        import pynvml
    except ImportError:
        return ""
    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except (pynvml.NVMLError, AttributeError):  # no driver, or a library that cannot tell
        return ""
    text = version.decode() if isinstance(version, bytes) else str(version)
    return text if re.fullmatch(r"\d+(\.\d+)+", text) else ""
