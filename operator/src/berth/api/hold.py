"""Hold: these nodes are taken, why, and for how long."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from berth.api.meta import Conditions, Duration, Labels, Name, Resource, Short, Text, Time, Wire

ModelKey = Annotated[str, Field(max_length=320)]


class HoldSpec(Wire):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "(has(self.nodes) && self.nodes.size() > 0)"
                    " || (has(self.nodeSelector) && self.nodeSelector.size() > 0)",
                    "message": "a hold names its nodes, by nodes or nodeSelector",
                }
            ]
        }
    )
    nodes: Annotated[list[Name], Field(max_length=256)] = []
    node_selector: Labels = {}
    reason: Text = ""
    budget: Duration = "30m"
    holder: Short = ""
    renew_time: Time | None = None
    """Moved on by a holder that watches over its hold; silence then ends it, not the budget."""
    released: bool = False
    """Set by the holder at the end; the same as deleting the Hold, but it stays to be read."""


class HoldStatus(Wire):
    observed_generation: int | None = None
    conditions: Conditions = []
    since: Time | None = None
    """When it got its nodes; the budget counts from there."""
    nodes: Annotated[list[Name], Field(max_length=256)] = []
    models: Annotated[list[ModelKey], Field(max_length=256)] = []
    """``namespace/name`` of what was unloaded for it and is not loaded again yet."""


class Hold(Resource):
    kind: Literal["Hold"] = "Hold"
    spec: HoldSpec
    status: HoldStatus = HoldStatus()
