"""The networks that grow."""

from esper_env.hosts.base import HOSTS, Host, Slot
from esper_env.hosts.cnn import CNNHost
from esper_env.hosts.mlp import MLPHost

__all__ = ["HOSTS", "CNNHost", "Host", "MLPHost", "Slot"]
