"""What do the cluster's settings mean to each part of the controller, and to who looks at its plans?"""

from berth.controller.observe import Frame
from berth.controller.observe_models import Defaults
from berth.controller.pricing import PriceSettings
from berth.manifests.holder import HolderSettings
from berth.manifests.pod import PodSettings
from berth.settings import Settings


def price_settings(settings: Settings) -> PriceSettings:
    """The runtimes that are switched on, their images, and the context where nobody says."""
    return PriceSettings(
        images=runner_images(settings),
        context_length=settings.number("CONTEXT_LENGTH"),
        runtimes=tuple(settings.items("RUNTIMES")),
    )


def runner_images(settings: Settings) -> dict[str, str]:
    """The cluster's images by ``RUNTIME/HARDWARE``. Raises ValueError on an entry that is no pair."""
    images = {}
    for entry in settings.items("RUNNER_IMAGES"):
        name, separator, image = entry.partition("=")
        if not separator or "/" not in name:
            raise ValueError(f"BERTH_RUNNER_IMAGES: {entry!r} is not RUNTIME/HARDWARE=IMAGE")
        images[name] = image
    return images


def pod_settings(settings: Settings) -> PodSettings:
    """What every runner pod of the cluster shares."""
    return PodSettings(
        store_root=settings.text("STORE_ROOT"),
        store_volume=settings.text("STORE_VOLUME"),
        runtime_class=settings.text("RUNTIME_CLASS"),
        log_level=settings.text("LOG_LEVEL"),
        quiet_s=settings.seconds("DRAIN_QUIET"),
        session_limit=settings.bytes("SESSION_LIMIT"),
    )


def holder_settings(settings: Settings) -> HolderSettings:
    """What every pod that holds a copy of weights shares."""
    return HolderSettings(
        namespace=settings.text("NAMESPACE"),
        image=settings.text("IMAGE_OPERATOR"),
        store_root=settings.text("STORE_ROOT"),
    )


def frame_of(settings: Settings, *, epoch: int, healthy_since: float) -> Frame:
    """What a pass is told beside the objects and their prices."""
    return Frame(
        epoch=epoch,
        healthy_since=healthy_since,
        defaults=Defaults(
            idle_timeout_s=settings.seconds("IDLE_TIMEOUT"), device=settings.text("DEVICE")
        ),
        host_reserve=settings.bytes("HOST_RESERVE"),
        fairness_s=settings.seconds("FAIRNESS_WINDOW"),
        healthy_needed_s=settings.seconds("HEALTHY_BEFORE_UNLOAD"),
        drain_quiet_s=settings.seconds("DRAIN_QUIET"),
        hold_silence_s=settings.seconds("HOLD_SILENCE"),
    )
