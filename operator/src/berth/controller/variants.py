"""In which ways can a Model be launched, and with which command? One variant a Need."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from berth.manifests.pod import HEAD_ADDRESS
from berth.runtimes.base import Launch, Member, Runtime


@dataclass(frozen=True)
class Variant:
    """One way to launch: what was priced under this name is what runs.

    ``settings`` are those that the runtime priced. The argument list is made of them once the place is known.
    """

    name: str
    image: str
    runtime: Runtime
    settings: Any
    launch: Launch
    hardware: str = "cpu"
    hosts: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    """The runtime's own variables, below everybody else's."""
    port: int = 8080
    host_file_pages: int = 0
    """Bytes of mapped weights that the engine reads again and again."""
    hang_timeout_s: float = 120.0

    def command(self, cards: tuple[int, ...] = ()) -> list[str]:
        """The argument list on devices of so many bytes. Raises ValueError."""
        return self.runtime.command(self.settings, replace(self.launch, cards=cards))

    def words(self, rank: int, size: int, cards: tuple[int, ...] = ()) -> list[str]:
        """The argument list of one Runner: of one that is alone, or of a member of a group.

        Raises ValueError. Where a group meets is filled in by the kubelet, once the head has an address.
        """
        if size < 2:
            return self.command(cards)
        return self.node_command(Member(rank, size, HEAD_ADDRESS), cards)

    def node_command(self, member: Member, cards: tuple[int, ...] = ()) -> list[str]:
        """The argument list of one node of a group. Raises ValueError where the runtime has no groups."""
        launch = replace(self.launch, cards=cards)
        return self.runtime.node_command(self.settings, launch, member)


def variant_of(variants: tuple[Variant, ...], name: str) -> Variant:
    """The variant that the planner chose. Raises KeyError when it was priced away meanwhile."""
    for variant in variants:
        if variant.name == name:
            return variant
    raise KeyError(name)
