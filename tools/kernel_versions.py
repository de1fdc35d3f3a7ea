"""Count the versions of kernels that `verify --device cuda` would compile, without a GPU.

    TRITON_INTERPRET=1 python tests/fake_cuda.py tools/kernel_versions.py --seed 1

Runs `verify` on the stand-in device, with the tiles and parts of an H100, and tells the launches
of all its processes apart as Triton does: by kernel, dtypes, constants, options, and the alignment
or value for which an argument is specialised. Arguments are those of `verify`. Prints the number
of versions of each kernel, and the arguments that differ with the number of their values. Left
out: cases of real sizes, which take too long here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fake_cuda

from attnproof.harness.oracles.launches import Launches
from attnproof.optimized.kernels import (
    paged_attention,
    paged_attention_launch,
    paged_attention_tiles,
)


class Noted:
    """The versions of kernels launched by the worker and all its forks, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._launches = Launches()
        self._lines: set[str] = set()

    def note(self, kernel: Any, *args: Any, **options: Any) -> None:
        """Add the version of a launch to the file if it is new to this process."""
        _, specialised, chosen = self._launches._bind(kernel, *args, **options)
        values = zip([*kernel.arg_names, *chosen], [*specialised, *chosen.values()], strict=True)
        of_argument = {name: str(value) for name, value in values}
        line = json.dumps([f"{kernel.fn.__module__}.{kernel.fn.__name__}", of_argument]) + "\n"
        if line not in self._lines:
            self._lines.add(line)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)

    def running(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run` of Triton's kernels that notes the version of each launch."""

        def note_and_run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            if kernel.fn.__module__ != paged_attention.__name__:
                self.note(kernel, *args, **options)
            return run(kernel, *args, grid=grid, warmup=warmup, **options)

        return note_and_run

    def attending(self, attend: Callable[..., Any]) -> Callable[..., Any]:
        """Return `attend_on_device` that notes an H100's launches and makes the interpreter's."""

        def launch(kernel: Any, _device: Any, _grid: Any, *args: Any, **options: Any) -> None:
            self.note(kernel, *args, **options)

        def note_and_attend(attention: Any) -> None:
            with (
                patch.object(paged_attention_launch, "target_of", lambda _: "sm90"),
                patch.object(paged_attention_tiles, "_processors", lambda _: 132),
                patch.object(paged_attention_launch, "launch", launch),
            ):
                attend(attention)
            attend(attention)

        return note_and_attend


def summary(lines: set[str]) -> str:
    """Return a line for each kernel, most versions first, and the total."""
    by_kernel: dict[str, list[dict[str, str]]] = defaultdict(list)
    for line in lines:
        kernel, of_argument = json.loads(line)
        by_kernel[kernel].append(of_argument)
    texts = []
    for kernel, versions in sorted(by_kernel.items(), key=lambda each: (-len(each[1]), each[0])):
        numbers = Counter(name for name, _ in {pair for each in versions for pair in each.items()})
        varied = ", ".join(f"{name} {number}" for name, number in numbers.items() if number > 1)
        texts.append(f"{len(versions):5}  {kernel.removeprefix('attnproof.')}: {varied}")
    return "\n".join([*texts, f"{len(lines):5}  versions of {len(by_kernel)} kernels"])


def main() -> None:
    """Run `verify` and print the summary, whatever its verdict."""
    from triton.runtime.interpreter import InterpretedFunction

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "versions")
        path.touch()
        noted = Noted(path)
        InterpretedFunction.run = noted.running(InterpretedFunction.run)
        attend = noted.attending(paged_attention_launch.attend_on_device)
        paged_attention_launch.attend_on_device = attend
        try:
            fake_cuda._verify(["verify", "--candidate", "optimized", *sys.argv[1:]])
        finally:
            print(summary(set(path.read_text(encoding="utf-8").splitlines())))


if __name__ == "__main__":
    main()
