"""The recorder: collects what hooks see of an engine step, and hands it to the writer."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Any

from attnproof.harness.recorder.containing import Contained, contained
from attnproof.harness.recorder.copying import Copies
from attnproof.harness.recorder.header import header_of
from attnproof.harness.recorder.metadata import build_frame, table_of
from attnproof.harness.recorder.requests import RequestNumbers, Requests
from attnproof.harness.recorder.schema import BuildFrame, SplitFrame, Step
from attnproof.harness.recorder.settings import Settings
from attnproof.harness.recorder.writing import Writer

_SPLIT = ("decode_threshold", "require_uniform", "treat_short_extends_as_decodes")
_SAME = ("num_reqs", "num_actual_tokens", "max_query_len")


class Recorder(Contained):
    """State of the recording of one process; its methods are called on the engine's thread."""

    def __init__(self, settings: Settings) -> None:
        self.building = False
        """True while a builder of vLLM 0.11 works."""
        self.settings = settings
        self._writer: Writer | None = None
        self._requests = Requests()
        self._numbers = RequestNumbers()
        """Used by the writing thread only."""
        self._ended: list[str] = []
        """Requests that have ended since the last step of the file."""
        self._runner: Any = None
        self._scheduled: Any = None
        self._number = 0
        self._recorded = 0
        self._dummies = 0
        self._step: Step | None = None
        self._copies = Copies()
        self._inputs: list[Any] = []
        """The metadata object of each build of the step."""
        self._results: list[Any] = []
        """What the builder made of each."""
        os.register_at_fork(after_in_child=self._leave_to_parent)

    @contained
    def guarded(self, action: Callable[[], None]) -> None:
        """Call a function; an error of it ends the recording."""
        action()

    @contained
    def begin_step(self, runner: Any, scheduler_output: Any) -> None:
        """Begin an engine step; it is recorded if it is one of the sample and no dummy."""
        if self._dummies:
            return
        self._number += 1
        self._runner, self._scheduled = runner, scheduler_output
        if (self._number - 1) % self.settings.sample == 0:
            self._open()

    @contained
    def end_step(self) -> None:
        """End the engine step, and hand it to the writer."""
        if self._dummies:
            return
        step, scheduled = self._step, self._scheduled
        if scheduled is not None:
            self._ended += scheduled.finished_req_ids
        if step is not None and step.builds:
            self._requests.take_schedule(scheduled)
            self._hand_over(step)
        self._step = self._scheduled = None
        if self.settings.limit and self._recorded >= self.settings.limit:
            self.stop("limit")

    @contained
    def begin_dummy(self) -> None:
        """Begin a run of the engine without requests, such as a warm-up."""
        self._dummies += 1

    @contained
    def end_dummy(self) -> None:
        """End a run without requests."""
        self._dummies -= 1

    @contained
    def build(self, group: Any, metadata: Any, index: int, door: str) -> None:
        """Copy metadata before a builder gets it.

        `index` is the micro-batch, or the drafting step. Drafting after the step makes a frame of
        its own; other builds outside a step are those of dummy runs, and are left out.
        """
        if self._dummies or (self._step is None and not self._drafts(door)):
            return
        drafting = self._step is None
        if drafting:
            self._open()
        assert self._step is not None
        if not self._step.builds and not drafting:
            self._requests.take_rows(self._runner)
        frame = build_frame(group, metadata, index, door, self._copies)
        self._add(frame, metadata)
        if drafting:
            self._hand_over(self._step)
            self._step = None

    @contained
    def built(self, result: Any) -> None:
        """Keep what the builder made of the last metadata, to know it again."""
        if self._step is not None and self._results:
            self._results[-1] = result

    @contained
    def update(self, builder: Any, metadata: Any, table: Any, slots: Any) -> None:
        """Copy the block table and slots that a builder puts into what it has made before."""
        if self._dummies or self._step is None:
            return
        index = next((i for i, result in enumerate(self._results) if result is metadata), None)
        if index is None:
            return
        frame = table_of(self._step.builds[index], builder, table, slots, self._copies)
        self._add(frame, self._inputs[index])

    @contained
    def split(self, metadata: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add the result of a split of the metadata that the current builder got."""
        if self._step is None or self._dummies or not self._inputs:
            return
        batch = self._inputs[-1]
        if metadata is not batch and not _is_equal_batch(metadata, batch):
            return
        arguments = dict(zip(_SPLIT, args, strict=False)) | kwargs
        numbers = {name: _integer(value) for name, value in arguments.items() if name in _SPLIT}
        self._step.splits.append(
            SplitFrame(len(self._step.builds) - 1, numbers, [int(number) for number in result])
        )

    def _drafts(self, door: str) -> bool:
        sampled = self._number and (self._number - 1) % self.settings.sample == 0
        return door == "drafting" and bool(sampled)

    def _open(self) -> None:
        self._step = Step(step=self._number, tensors=[], builds=[])
        self._copies, self._requests = Copies(), Requests()
        self._inputs.clear()
        self._results.clear()

    def _add(self, frame: BuildFrame, metadata: Any) -> None:
        assert self._step is not None
        self._step.builds.append(frame)
        self._inputs.append(metadata)
        self._results.append(None)

    def _hand_over(self, step: Step) -> None:
        if self._writer is None:
            header = header_of(self._runner, self.settings.sample)
            self._writer = Writer(self.settings.folder, header, self.fail)
            # Runs at the end of a process of multiprocessing too, where atexit does not.
            Finalize(None, self.stop, args=("exit",), exitpriority=100)
        self._copies.release()
        self._requests.finished = self._ended
        complete = functools.partial(_complete, self._numbers, step, self._copies, self._requests)
        if self._writer.put(complete, self._copies.num_bytes):
            self._ended = []
        self._recorded += 1
        self._inputs.clear()
        self._results.clear()

    def stop(self, reason: str) -> None:
        """Stop recording, and end the file."""
        self.active = False
        self._step = self._scheduled = self._runner = None
        self._inputs.clear()
        self._results.clear()
        if self._writer is not None:
            # At the limit the engine must not wait for the disk; the process's end does.
            self._writer.close(reason, timeout_s=5.0 if reason == "exit" else 0.0)

    def _leave_to_parent(self) -> None:
        if self._writer is not None:  # its thread and its file belong to the parent
            self.active, self._writer = False, None


def _complete(numbers: RequestNumbers, step: Step, copies: Copies, requests: Requests) -> Step:
    """Return a step with its tensors, and numbers in the place of requests."""
    step.tensors = copies.tensors()
    numbers.describe(step, requests)
    return step


def _is_equal_batch(metadata: Any, batch: Any) -> bool:
    """True if the metadata is a copy of the given, with another block table perhaps."""
    return (
        all(getattr(metadata, name) == getattr(batch, name) for name in _SAME)
        and metadata.query_start_loc_cpu.data_ptr() == batch.query_start_loc_cpu.data_ptr()
    )


def _integer(value: Any) -> int | bool:
    return value if isinstance(value, bool) else int(value)
