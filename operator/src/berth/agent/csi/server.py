"""How does the kubelet talk to the volume driver? gRPC over two unix sockets."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from berth.agent.csi import messages
from berth.agent.csi.volumes import BadVolumeError, NotLentError, Volumes
from berth.manifests.lent import DRIVER

log = logging.getLogger(__name__)
_STOP_S = 5.0


@dataclass(frozen=True)
class Sockets:
    """Where the kubelet finds the driver. It sees the same paths as this process."""

    csi: Path
    registration: Path

    @classmethod
    def below(cls, kubelet: Path) -> "Sockets":
        return cls(
            csi=kubelet / "plugins" / DRIVER / "csi.sock",
            registration=kubelet / "plugins_registry" / f"{DRIVER}-reg.sock",
        )


@dataclass(frozen=True)
class Driver:
    """The answers. ``node`` is the node's name, ``version`` this release's."""

    node: str
    version: str
    sockets: Sockets
    volumes: Volumes

    def services(self) -> dict[str, dict[str, tuple[Callable[[Any], Any], Any]]]:
        """Service, method, (answer, class of the request)."""
        empty = messages.Empty
        return {
            "csi.v1.Identity": {
                "GetPluginInfo": (self._plugin, empty),
                "GetPluginCapabilities": (lambda _: empty(), empty),
                "Probe": (lambda _: messages.ProbeResponse(ready=messages.Flag(value=True)), empty),
            },
            "csi.v1.Node": {
                "NodeGetInfo": (lambda _: messages.NodeInfo(node_id=self.node), empty),
                "NodeGetCapabilities": (lambda _: empty(), empty),
                "NodePublishVolume": (self._publish, messages.Publish),
                "NodeUnpublishVolume": (self._unpublish, messages.Unpublish),
            },
            "pluginregistration.Registration": {
                "GetInfo": (self._registration, empty),
                "NotifyRegistrationStatus": (self._registered, messages.RegistrationStatus),
            },
        }

    def _plugin(self, _: Any) -> Any:
        return messages.PluginInfo(name=DRIVER, vendor_version=self.version)

    def _registration(self, _: Any) -> Any:
        return messages.Registration(
            type="CSIPlugin",
            name=DRIVER,
            endpoint=str(self.sockets.csi),
            supported_versions=["1.0.0"],
        )

    def _registered(self, request: Any) -> Any:
        if request.plugin_registered:
            log.info("the kubelet knows %s", DRIVER)
        else:
            log.error("the kubelet refused %s: %s", DRIVER, request.error)
        return messages.Empty()

    def _publish(self, request: Any) -> Any:
        context = {pair.key: pair.value for pair in request.volume_context}
        self.volumes.publish(request.target_path, context)
        return messages.Empty()

    def _unpublish(self, request: Any) -> Any:
        self.volumes.unpublish(request.target_path)
        return messages.Empty()


@contextlib.contextmanager
def serving(driver: Driver) -> Iterator[None]:
    """Answers on both sockets while the block lasts."""
    # One at a time: a mount takes less than a millisecond, and two of one pod never race.
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    for service, methods in driver.services().items():
        handlers = {name: _handler(answer, kind) for name, (answer, kind) in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    # The kubelet asks at once when it sees the socket of the registration: that one comes last.
    for socket in (driver.sockets.csi, driver.sockets.registration):
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(_STOP_S).wait()


def _handler(answer: Callable[[Any], Any], kind: Any) -> Any:
    def call(request: Any, context: Any) -> Any:
        try:
            return answer(request)
        except BadVolumeError as err:
            code, told = grpc.StatusCode.INVALID_ARGUMENT, str(err)
        except NotLentError as err:
            code, told = grpc.StatusCode.NOT_FOUND, str(err)
        except OSError as err:
            code, told = grpc.StatusCode.INTERNAL, f"{err.filename}: {err.strerror}"
        log.warning("refused: %s", told)
        return context.abort(code, told)

    return grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=kind.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
