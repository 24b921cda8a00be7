"""Leaves pipelines out of a set that ended the driver of this device before.

Which they are is known when the device is open, since the quarantine is kept for each device and driver.
"""

from __future__ import annotations

from pathlib import Path

from attrs import define, field

from orchestrator.devices.device import Device
from orchestrator.devices.request import DeviceRequest
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener
from orchestrator.stores.culprits import load_quarantine


@define(eq=False)
class QuarantinedSet:
    """A set without the culprits of the devices that are opened for it. One thread at a time.

    Attributes:
        whole: The set.
        directory: Where quarantines are kept; None leaves nothing out.
        notes: What a reader of the report must know.
    """

    whole: PipelineSet
    directory: Path | None
    notes: list[str] = field(factory=list)
    _reasons: dict[int, str] = field(factory=dict)
    _source: PipelineSet | None = None

    @property
    def source(self) -> PipelineSet:
        """The set as the driver may be given it."""
        if self._source is None:
            self._reasons = dict(self.whole.left_out)
            self._source = self.whole.leaving_out(self._reasons)
        return self._source

    def opening(self, opener: DeviceOpener) -> DeviceOpener:
        """An opener that leaves out the culprits of what it opens, before anything is decoded for that."""
        directory = self.directory
        if directory is None:
            return opener

        def open_and_leave_out(request: DeviceRequest) -> Device:
            device = opener(request)
            self._leave_out(directory, device)
            return device

        return open_and_leave_out

    def _leave_out(self, directory: Path, device: Device) -> None:
        loaded = load_quarantine(directory, device.identity)
        if loaded.problem:
            self._say(f"the quarantine of pipelines was not used: {loaded.path}: {loaded.problem}")
        if loaded.profile is None:
            return
        keys = {job.key for job in self.source.pipelines}
        found = {int(each.key, 16): each.reason for each in loaded.profile.culprits}
        known = {key: reason for key, reason in found.items() if key in keys and key not in self._reasons}
        self._reasons.update(known)
        if known:
            several = len(known) > 1
            self._say(
                f"{len(known)} pipeline{'s are' if several else ' is'} in quarantine: "
                f"{'each' if several else 'it'} ended the driver's process in an earlier run, and "
                f"{'they were' if several else 'it was'} not tried again (--retry-quarantined tries, "
                "`orchestrator quarantine list` shows all)"
            )

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
