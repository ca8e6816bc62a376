"""Experts that are spread over devices: what a token, an expert's weights and an exchange cost one of them.

Dispatch sends a token's activations to the devices of its experts, combine sends their results back. Two kinds of
kernels: low-latency ones send every choice of a token by itself; normal ones send a token once to each node and once to
each device there. A device sends its own tokens and receives those of its experts, whichever is more decides.

What the defaults rest on: 30 us and 45 GB/s a device between nodes, 35 % of the scale-up link (157 GB/s of an H100's
450), give the times that DeepEP publishes for 128 tokens of 7,168 on 8 to 64 H800s within 8 % (77, 118, 155, 173 us to
dispatch; 114, 195, 273, 314 us to combine).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import UsageError
from .deployment import Deployment
from .keys import CostSettings
from .models import WIDE_BYTES, Moe, expert_matmuls, matmul_bytes
from .roofline import make_rank
from .tables import ExpertTimes

NORMAL, LOW_LATENCY = 0, 1

_SCALE_UP_SHARE = 0.35
_ACTIVATION_BYTES = {"fp8": 1.0, "bf16": 2.0}


@dataclass(frozen=True)
class Network:
    """How the devices of an instance are linked; see the keys `experts.<name>`."""

    node_devices: int = 8
    network_gbs: float = 45.0
    exchange_us: float = 30.0
    dispatch_dtype: str = "fp8"


@dataclass(frozen=True)
class Exchange:
    """What experts cost one device of a deployment.

    times           prices of the query's dimensions
    activation      activations of one token in one expert, as a part of the bytes of that expert's weights
    pair_bytes      (normal, low latency) dispatch and combine of a choice of a token, as bytes over the slowest link
    fixed_ns        of dispatch and combine together, one layer
    expert_bytes    weights of one expert of one layer
    node_devices, nodes
    near_ns, far_ns of a byte within a node and between nodes
    """

    times: ExpertTimes
    activation: float
    pair_bytes: tuple[float, float]
    fixed_ns: float
    expert_bytes: float
    node_devices: int
    nodes: int
    near_ns: float
    far_ns: float


def exchange_of(deployment: Deployment, settings: CostSettings, network: Network) -> Exchange:
    """Prices for a deployment with ep > 1. UsageError: its devices do not fill nodes, or have no link."""
    device, model, ep = deployment.device, deployment.model, deployment.ep
    moe = model.moe
    assert moe is not None
    nodes = max(1, -(-ep // network.node_devices))
    if nodes > 1 and ep % network.node_devices:
        raise UsageError(
            f"ep {ep} does not fill nodes of {network.node_devices} devices; set experts.node_devices or another ep"
        )
    rank = make_rank(deployment, settings)
    weights = expert_matmuls(model, deployment.tp, ep, deployment.redundant)
    one = sum(m.inputs * m.outputs for m in weights)
    expert_bytes = float(sum(m.inputs * m.outputs * matmul_bytes(m, deployment.dtype) for m in weights))
    activations = float(sum((m.inputs + m.outputs) * WIDE_BYTES for m in weights))
    scale_up = device.scale_up or device.host_link
    if not scale_up:
        raise UsageError(f"{device.name} has no link to another device: experts cannot be spread")
    near_ns, far_ns = 1e9 / (scale_up * _SCALE_UP_SHARE), 1.0 / network.network_gbs
    slowest = far_ns if nodes > 1 else near_ns
    token_bytes = model.hidden * (_ACTIVATION_BYTES[network.dispatch_dtype] + WIDE_BYTES)
    links = (near_ns / slowest, far_ns / slowest)
    return Exchange(
        ExpertTimes(2.0 * one / rank.flops_per_ns, expert_bytes / rank.bytes_per_ns, slowest),
        activations / expert_bytes,
        (token_bytes * _normal(ep, nodes, moe, links), token_bytes * _low_latency(ep, nodes, links)),
        2e3 * network.exchange_us,
        expert_bytes,
        min(network.node_devices, ep),
        nodes,
        near_ns,
        far_ns,
    )


def _low_latency(ep: int, nodes: int, links: tuple[float, float]) -> float:
    """Share of a choice's bytes that leaves the device, weighted by link: both links work at once."""
    near, far = links
    own_node = ep // nodes
    return max(near * (own_node - 1) / ep, far * (ep - own_node) / ep if nodes > 1 else 0.0)


def _normal(ep: int, nodes: int, moe: Moe, links: tuple[float, float]) -> float:
    """The same where a token goes once to each node and once to each device: per choice."""
    near, far = links
    choices, own_node = moe.experts_per_token, ep // nodes
    reached = nodes
    if moe.groups > 1 and moe.groups % nodes == 0:  # groups lie on nodes
        reached = min(nodes, moe.group_limit)
    to_nodes = _distinct(reached, choices)
    to_devices = to_nodes * _distinct(own_node, choices / to_nodes)
    return max(near * to_devices * (own_node - 1) / own_node, far * to_nodes * (nodes - 1) / nodes) / choices


def _distinct(places: int, choices: float) -> float:
    """Expected number of different places among so many choices, each place as likely as any other."""
    missed, whole = 1.0, int(choices)
    for _ in range(whole):
        missed *= 1.0 - 1.0 / places
    missed *= 1.0 - (choices - whole) / places
    return places * (1.0 - missed)
