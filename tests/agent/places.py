"""Where do the agent's tests take place?"""

from berth.api.inventory import NodeInventory
from berth.api.runner import Runner
from berth.kube.refs import ref_of

RUNNERS, INVENTORIES = ref_of(Runner), ref_of(NodeInventory)
NODE, NAMESPACE = "gpu-1", "team"
