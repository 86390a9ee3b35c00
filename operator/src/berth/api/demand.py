"""Demand: who waits for a model, and when it was last used."""

from typing import Annotated, Literal

from pydantic import Field

from berth.api.meta import Count, Name, Resource, Time, Wire


class Waiting(Wire):
    """One gateway's word that requests wait for a model that is not up."""

    gateway: Name
    requests: Count = 0
    since: Time = ""
    beat: Annotated[int, Field(ge=0)] = 0
    """Rises every 5 s while somebody waits. Only its change is read, never its value."""


class DemandSpec(Wire):
    pass


class DemandStatus(Wire):
    used: Time | None = None
    """A request ran or ended. Written with one field manager that all gateways share."""
    waiting: Annotated[
        list[Waiting],
        Field(
            max_length=64,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["gateway"],
            },
        ),
    ] = []


class Demand(Resource):
    kind: Literal["Demand"] = "Demand"
    spec: DemandSpec = DemandSpec()
    status: DemandStatus = DemandStatus()
