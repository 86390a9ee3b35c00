"""What must an engine's module answer so that Berth can run the engine?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from berth.estimator import Device, Estimate, Host, Settings
from berth.facts import Facts

if TYPE_CHECKING:  # A pasted command line is priced without the types of the API.
    from berth.api.profile import ProfileFields


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA file in the runner's pod and how strongly it is applied."""

    path: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Launch:
    """Where things are in the runner's pod, and on which address the engine listens."""

    model: str
    """The path of the model's file (of the first shard), or of its folder."""
    name: str
    """The id under which the model is served."""
    host: str = "0.0.0.0"
    port: int = 8080
    projector: str | None = None
    adapters: tuple[Adapter, ...] = ()
    draft: str | None = None
    sessions: str | None = None
    """A folder for saved sessions."""


class Runtime(Protocol):
    """One engine. All of it is pure: values in, values out."""

    name: str
    health_path: str
    """Answers 200 once the engine serves, 503 while it loads."""

    def settings(self, facts: Facts, profile: ProfileFields) -> Settings:
        """Every setting in force for a model under a resolved profile, ``args`` included.

        Raises ValueError on arguments that mean nothing.
        """
        ...

    def command(self, settings: Settings, launch: Launch, extra: Sequence[str] = ()) -> list[str]:
        """The engine's argument list: every setting that moves a byte is in it, then ``extra``."""
        ...

    def environment(self, settings: Settings) -> Mapping[str, str]:
        """Variables that the engine needs beside its arguments."""
        ...

    def estimate(
        self,
        facts: Facts,
        settings: Settings,
        *,
        devices: Sequence[Device] = (),
        host: Host | None = None,
        projector: Facts | None = None,
        adapters: Sequence[Facts] = (),
        draft: Facts | None = None,
    ) -> Estimate:
        """What the engine takes with these settings on these devices. Raises ValueError."""
        ...
