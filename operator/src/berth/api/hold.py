"""Hold: these nodes are taken, why, and for how long."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from berth.api.meta import Conditions, Duration, Labels, Name, Resource, Short, Text, Time, Wire


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


class HoldStatus(Wire):
    observed_generation: int | None = None
    conditions: Conditions = []
    since: Time | None = None
    nodes: Annotated[list[Name], Field(max_length=256)] = []


class Hold(Resource):
    kind: Literal["Hold"] = "Hold"
    spec: HoldSpec
    status: HoldStatus = HoldStatus()
