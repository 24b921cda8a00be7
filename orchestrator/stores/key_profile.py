"""What a driver's pipeline-cache keys depend on beside the pipeline, kept beside the device's cache file.

Guarantees: those of profile_file.py. Fields may be added, with a default; none changes its meaning.
"""

from __future__ import annotations

import msgspec

from orchestrator.devices.request import Feature
from orchestrator.stores.beside import KEY_PROFILE_SUFFIX
from orchestrator.stores.profile_file import ProfileFile, ProfileIdentity, ProfileLoad

KEY_PROFILE_FORMAT = 1


class ProbedKind(msgspec.Struct, frozen=True, kw_only=True):
    """How the baseline fared for one kind of pipeline.

    Attributes:
        kind: "compute", "graphics", "pipeline library" or "ray tracing".
        pipelines: Pipelines that were looked up.
        usable: Of these, found by the same baseline in a new process and not found in an empty cache: those that can tell.
        problem: Why nothing can be said of the kind, or "".
    """

    kind: str
    pipelines: int
    usable: int
    problem: str = ""


class Tried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing in which a device differed from the baseline.

    Attributes:
        aspect: What it is of: "feature", "extension", "apiVersion", "environment", ...
        name: What it is called.
        kinds: The kinds of pipelines that it was tried with; of a dependence those that were not found.
        features: The features that were enabled.
        given: Features that the baseline had as well, since it was only tried beside them.
        environment: The variables that were set.
        identity: Whether the device had another pipelineCacheUUID then, so that even its cache file is another one.
    """

    aspect: str
    name: str
    kinds: tuple[str, ...]
    features: tuple[Feature, ...] = ()
    given: tuple[Feature, ...] = ()
    environment: dict[str, str] = {}
    identity: bool = False

    @property
    def text(self) -> str:
        """It in words."""
        beside = ", ".join(f"{struct}::{member}" for struct, member in self.given)
        return f"{self.aspect} {self.name}" + (f", beside {beside}" if beside else "")


class NotTried(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of which nothing is known.

    Attributes:
        aspect: What it is of.
        name: What it is called.
        reason: Why.
    """

    aspect: str
    name: str
    reason: str


class KeyProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver's keys depend on.

    Attributes:
        identity: What it is about.
        device_name: For people.
        driver: Name and version of the driver, for people.
        made_at: Seconds since 1970.
        took_s: How long it took, s.
        orchestrator: Version of this project.
        api_version: VkApplicationInfo::apiVersion of the baseline.
        method: How hits were told.
        kinds: The kinds of pipelines.
        depends: What the keys depend on.
        independent: What they do not depend on.
        not_tried: What could not be tried.
        disagreements: Where compiling forbidden and creation feedback said different things.
        notes: What a reader must know.
        whole: Whether everything was tried that this version knows of, and not a choice.
        format: Version of this layout.
    """

    identity: ProfileIdentity
    device_name: str
    driver: str
    made_at: float
    took_s: float
    orchestrator: str
    api_version: int
    method: str
    kinds: tuple[ProbedKind, ...]
    depends: tuple[Tried, ...]
    independent: tuple[Tried, ...]
    not_tried: tuple[NotTried, ...]
    disagreements: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    whole: bool = True
    format: int = KEY_PROFILE_FORMAT

    @property
    def says_anything(self) -> bool:
        """Whether the baseline of any kind of pipeline could tell."""
        return any(not each.problem for each in self.kinds)

    @property
    def is_doubtful(self) -> bool:
        """Whether the baseline of a kind that the device takes could not tell, or the two ways of looking disagreed."""
        return bool(self.disagreements) or any(each.problem and each.pipelines for each in self.kinds)


KEY_PROFILE = ProfileFile(KEY_PROFILE_SUFFIX, KeyProfile, KEY_PROFILE_FORMAT)
KeyProfileLoad = ProfileLoad[KeyProfile]
key_profile_path, load_key_profile, save_key_profile = KEY_PROFILE.path, KEY_PROFILE.load, KEY_PROFILE.save
