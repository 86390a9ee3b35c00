"""Which messages does the kubelet exchange with a volume driver? Those that it really uses.

From the Container Storage Interface 1.x (``csi.proto``, package csi.v1) and the kubelet's plugin
registration (``pluginregistration/v1/api.proto``). Fields that nobody here reads are left out, as
protobuf allows; a map is declared as what it is on the wire: a list of pairs.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_STRING, _BOOL = _Field.TYPE_STRING, _Field.TYPE_BOOL

_DECLARED: dict[str, dict[str, tuple[tuple[str, int, Any], ...]]] = {
    "csi.v1": {
        "Empty": (),
        "Flag": (("value", 1, _BOOL),),
        "Pair": (("key", 1, _STRING), ("value", 2, _STRING)),
        "PluginInfo": (("name", 1, _STRING), ("vendor_version", 2, _STRING)),
        "ProbeResponse": (("ready", 1, "Flag"),),
        "NodeInfo": (("node_id", 1, _STRING),),
        "Publish": (
            ("volume_id", 1, _STRING),
            ("target_path", 4, _STRING),
            ("volume_context", 8, ["Pair"]),
        ),
        "Unpublish": (("volume_id", 1, _STRING), ("target_path", 2, _STRING)),
    },
    "pluginregistration": {
        "PluginInfo": (
            ("type", 1, _STRING),
            ("name", 2, _STRING),
            ("endpoint", 3, _STRING),
            ("supported_versions", 4, [_STRING]),
        ),
        "RegistrationStatus": (("plugin_registered", 1, _BOOL), ("error", 2, _STRING)),
    },
}
"""Package, message, (field, number, type). A list is a repeated field, a name another message."""


def _file(package: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"berth/{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in _DECLARED[package].items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            _add(message, field, number, kind, package)
    return file


def _add(message: Any, name: str, number: int, kind: Any, package: str) -> None:
    repeated = isinstance(kind, list)
    kind = kind[0] if repeated else kind
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if isinstance(kind, str):
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"
    else:
        field.type = kind


# A pool of its own: another library in this process may know the real csi.proto.
_POOL = descriptor_pool.DescriptorPool()
for _package in _DECLARED:
    _POOL.Add(_file(_package))


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


Empty = _message("csi.v1.Empty")
Flag = _message("csi.v1.Flag")
Pair = _message("csi.v1.Pair")
PluginInfo = _message("csi.v1.PluginInfo")
ProbeResponse = _message("csi.v1.ProbeResponse")
NodeInfo = _message("csi.v1.NodeInfo")
Publish = _message("csi.v1.Publish")
Unpublish = _message("csi.v1.Unpublish")
Registration = _message("pluginregistration.PluginInfo")
RegistrationStatus = _message("pluginregistration.RegistrationStatus")
