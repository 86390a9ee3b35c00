"""What is known of a Model's size and launch? The result of reading its header and pricing it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from berth.api.meta import SecretKeyRef
from berth.api.model import FactsStatus, FileFact
from berth.api.model import Needs as NeedsStatus
from berth.api.profile import ProfileFields
from berth.api.runner import Mount, SmokeRequest
from berth.controller.chain import Said
from berth.controller.variants import Variant
from berth.planner.state import Need
from berth.reasons import Reason


@dataclass(frozen=True)
class Priced:
    """One Model as it would be launched now. ``blocked`` says why it cannot be planned."""

    source_hash: str = ""
    settings_hash: str = ""
    generation: int = 0
    """Of the Model, as it was priced."""
    profile: str = ""
    """Name of the Profile in effect; empty where the Model names none."""
    fields: ProfileFields = field(default_factory=ProfileFields)
    """The settings after the whole chain."""
    runtime: str = "llamacpp"
    apis: tuple[str, ...] = ()
    has_prefix_cache: bool = False
    context_length: int = 0
    parallel: int = 1
    facts: FactsStatus | None = None
    shown: Mapping[str, NeedsStatus] = field(default_factory=dict)
    """The arithmetic for people, by hardware (``cuda``, ``cpu``), of the best way on each."""
    needs: tuple[Need, ...] = ()
    variants: tuple[Variant, ...] = ()
    """One for each of ``needs``, by its ``variant``."""
    files: tuple[FileFact, ...] = ()
    mount: Mount | None = None
    local_nodes: frozenset[str] | None = None
    origins: Mapping[str, tuple[Said, ...]] = field(default_factory=dict)
    """By hardware: every setting in force and who said it. Only for who asks for it."""
    runs_code: tuple[str, ...] = ()
    """Kinds of code in its profile that need a policy's trust."""
    device_names: tuple[str, ...] = ()
    """Parts of GPU names that its runtime asks for."""
    warnings: tuple[str, ...] = ()
    """Settings that have no effect, or hide others: told, and nothing is blocked."""
    token: SecretKeyRef | None = None
    """Of the files, where they are not those that the Model names now."""
    smoke: SmokeRequest | None = None
    """What a runner has to answer before it counts as up; only while its settings are not known to be good."""
    blocked: Reason | None = None
    blocked_word: str = ""
    """The reason as the condition shows it, where it is finer than ``blocked``."""
    blocked_message: str = ""

    @property
    def word(self) -> str:
        return self.blocked_word or (str(self.blocked) if self.blocked else "")
