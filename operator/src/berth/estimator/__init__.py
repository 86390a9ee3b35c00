"""How much memory will this model take with these settings? (Pure: values in, values out.)"""

from berth.estimator.estimate import estimate
from berth.estimator.result import Buffers, Estimate, HostNeeds, Kinds
from berth.estimator.settings import AUTO, CPU, CPU_REPACK, Device, Host, Settings

__all__ = [
    "AUTO",
    "CPU",
    "CPU_REPACK",
    "Buffers",
    "Device",
    "Estimate",
    "Host",
    "HostNeeds",
    "Kinds",
    "Settings",
    "estimate",
]
