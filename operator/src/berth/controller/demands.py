"""Where do gateways write who waits? Every Model has its Demand; it is made beside the passes."""

import logging
from collections.abc import Mapping
from functools import partial

from berth.api.demand import Demand
from berth.api.model import Model
from berth.controller.apply import Hands
from berth.kube.client import ApiError
from berth.kube.refs import ref_of
from berth.manifests.objects import demand as demand_body

log = logging.getLogger(__name__)
DEMANDS = ref_of(Demand)


def ensure_demands(hands: Hands, models: Mapping[str, Model]) -> None:
    """Every Model gets its Demand, for gateways to write on."""
    for key, model in models.items():
        name = (DEMANDS.kind, key)
        if hands.store.demands.get(key) is None and name not in hands.outbox:
            hands.outbox.post(name, key, partial(_create_demand, hands, model))


async def _create_demand(hands: Hands, model: Model) -> None:
    try:
        answer = await hands.kube.create(DEMANDS, demand_body(model), model.metadata.namespace)
    except ApiError as err:
        # It exists already, or its namespace is being deleted.
        log.debug("demand %s: %s", model.key, err)
        return
    hands.store.demands.put(answer)
