"""The link that a group of ranks sees, inside a node or over several."""

from course_lib.checked import checked
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.validation import choice


@checked
def group_link(cluster: Cluster, operation: str, ranks: int, stride: int = 1) -> Link:
    """The link as one GPU of a group sees it: ranks r, r + stride, … with `ranks` members.

    Within a node: the inner link. Over k nodes with g members in each, each member next to its own
    network port: rings use all g ports of the group, min(inside, g · between); in all-to-all only
    (n-g)/(n-1) of the bytes leave the node, min(inside, between · (n-1)/(n-g)); send/recv has one
    port. Of the n-1 steps of a ring k-1 cross the network, and the latency is their mean.
    Source: NCCL, src/graph/tuning.cc (nInterSteps); Bekman, Machine Learning Engineering, network.
    """
    choice("operation", operation, collectives.OPERATIONS)
    slowest = cluster.link(ranks, stride)
    if slowest == cluster.inside or operation == "send-recv":
        return slowest
    members = min(ranks, max(1, cluster.gpus_per_node // stride))
    crossing = (-(-ranks // members) - 1) / (ranks - 1)
    latency = cluster.inside.latency_s + crossing * (slowest.latency_s - cluster.inside.latency_s)
    ports: float = members
    if operation == "all-to-all":
        ports = (ranks - 1) / (ranks - members) if ranks > members else 1
    rate = min(cluster.inside.bytes_per_s, ports * slowest.bytes_per_s)
    return Link(slowest.name, rate, latency)
