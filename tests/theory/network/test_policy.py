"""Communication policies: what each setting changes, and what is refused."""

from dataclasses import replace

from probes import CLUSTER, DENSE, MIXTURE, ZERO_3, Probe, by_name

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.theory.network.step_traffic import step_traffic


def seen(policy):
    """Times of layouts that differ in how they send."""
    tensor = Layout(tp=2, sequence_parallel=True)
    layouts = Layout(dp=4, accumulation=2), replace(ZERO_3, accumulation=2), tensor
    jobs = [Job(DENSE, layout=layout, cluster=CLUSTER, sequence=512) for layout in layouts]
    experts = Layout(dp=8, ep=8, tp=2)
    jobs.append(Job(MIXTURE, layout=experts, cluster=CLUSTER, sequence=512))
    return [step_traffic(job, policy=policy).seconds for job in jobs]


REFUSED = [
    (lambda: CommunicationPolicy(bucket_bytes=0), "bucket_bytes must be at least 1"),
    (lambda: CommunicationPolicy(token_nodes=0), "token_nodes must be at least 1"),
    (lambda: CommunicationPolicy(algorithm="star"), "algorithm 'star' is not one of"),
]
PROBES = by_name(
    Probe(
        CommunicationPolicy,
        {},
        {"bucket_bytes": 10**6, "algorithm": "tree", "token_nodes": 1},
        see=seen,
    ),
)
