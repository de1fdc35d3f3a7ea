"""The environment of a run: versions, machine, commit, GPU."""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from attnproof import __version__
from attnproof.harness.model.run import Environment

_GPU_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def describe() -> Environment:
    """Return the environment of this process."""
    return Environment(
        attnproof=__version__,
        python=platform.python_version(),
        torch=package_version("torch") or "absent",
        numpy=package_version("numpy") or "absent",
        triton=package_version("triton"),
        numba=package_version("numba"),
        xformers=package_version("xformers"),
        platform=f"{platform.system()} {platform.machine()}",
        cpu=_cpu_name(),
        cpus=len(os.sched_getaffinity(0)),
        gpu=gpu_name(),
        commit=_commit(),
    )


def package_version(name: str) -> str | None:
    """Return the installed version, None if the package is absent."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def gpu_name() -> str | None:
    """Return the name of the first GPU that torch can use, None without one."""
    if not any(Path(file).exists() for file in _GPU_DEVICE_FILES):
        return None
    # In a child process: a process that has used CUDA cannot fork workers that use CUDA.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_send_gpu_name, args=(theirs,))
    child.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(60) else None
    except EOFError:
        return None
    finally:
        child.kill()
        child.join()


def _send_gpu_name(connection: multiprocessing.connection.Connection) -> None:
    import torch

    connection.send(torch.cuda.get_device_name(0) if torch.cuda.is_available() else None)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def _commit() -> str | None:
    """Return the commit of the working directory, followed by "+" with uncommitted changes."""

    def git(*args: str) -> str:
        command = ["git", *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
