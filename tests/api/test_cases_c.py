"""Loads on demand under odd conditions: what a hostile user found broken once."""

import asyncio

from api.bay import Bay


async def test_a_model_that_is_asked_within_its_idle_timeout_is_never_unloaded(bay: Bay) -> None:
    bay.node()
    model = bay.model("m", idleTimeout="4s")
    for _ in range(6):
        assert (await bay.ask(model)).status_code == 200
        await asyncio.sleep(2)
    assert len(bay.created_pods()) == 1
