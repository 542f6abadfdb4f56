"""The networks that grow."""

from esper_env.hosts.base import HOSTS, Host, Network, Slot, host_of
from esper_env.hosts.cnn import CNNHost
from esper_env.hosts.from_module import from_module
from esper_env.hosts.mlp import MLPHost
from esper_env.hosts.transformer import TransformerHost

__all__ = ["HOSTS", "CNNHost", "Host", "MLPHost", "Network", "Slot", "TransformerHost", "from_module", "host_of"]
