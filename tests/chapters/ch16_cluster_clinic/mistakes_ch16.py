"""Answers to chapter 16 that a check must refuse: (exercise, what was thought, answer)."""

import copy
from statistics import median

import yaml

from course_lib.chapters.ch16_cluster_clinic.exercises import (
    _CALLS,
    _CASES,
    _CLAIMS,
    _DIFFERENCES,
    _NAMED,
)
from course_lib.checking.hunts import drawn

_CALLED = {line: whom for line, (whom, _) in _CALLS.items()}
_WHO = {question: right for question, (right, _) in _NAMED.items()}
_TRUE = {claim: right for claim, (right, _) in _CLAIMS.items()}
_VERDICTS = ("rounding", "more than rounding", "don't know")
_JUDGED = dict(zip(_DIFFERENCES, (_VERDICTS[i] for i in (0, 1, 2, 0, 1, 1)), strict=True))
_FOUND = {seed: (drawn(seed).rank, drawn(seed).cause) for seed in _CASES}
_LINE = (
    "docker run -it --rm -v /data/llama:/root/llama -w /root/llama {} --shm-size=16G --net=host "
    "llama:24.05 bash"
)
_MENDED = _LINE.format("--gpus all")
_POD = yaml.safe_load("""
spec:
  containers:
  - name: trainer
    resources:
      requests: {nvidia.com/gpu: 8, rdma/rdma_shared_device_a: 1}
      limits: {nvidia.com/gpu: 8, rdma/rdma_shared_device_a: 1}
    securityContext: {capabilities: {add: [IPC_LOCK]}}
    volumeMounts: [{name: shm, mountPath: /dev/shm}]
  volumes: [{name: shm, emptyDir: {medium: Memory}}]
""")


def _pod(change):
    """The right pod, changed."""
    pod = copy.deepcopy(_POD)
    change(pod["spec"], pod["spec"]["containers"][0])
    return pod


def _limits(pod, container):
    del container["resources"]["limits"]


def _privileged(pod, container):
    container["securityContext"] = {"privileged": True}


def _no_lock(pod, container):
    del container["securityContext"]


def _disk(pod, container):
    pod["volumes"][0]["emptyDir"] = {}


def _four(pod, container):
    for numbers in container["resources"].values():
        numbers["nvidia.com/gpu"] = 4


def _without_rdma(pod, container):
    container["resources"] = {"limits": {"nvidia.com/gpu": 8}}


def _own(total, inside, of):
    """Of each rank the time outside of collectives."""
    pairs = zip(total, inside, strict=True)
    return [of(w - i for w, i in zip(whole, waits, strict=True)) for whole, waits in pairs]


def _at(values):
    """Where the largest is."""
    found = list(values)
    return found.index(max(found))


def _twice(own, factor=2):
    second, first = sorted(own)[-2:]
    return own.index(first) if first > factor * second else None


MISTAKES = [
    ("16.1", "counts bytes, not words", [1.525, 1.5, 0.061, 11.3]),
    ("16.1", "bits of the link over bytes", [6.1, 6.0, 0.0305, 2.8]),
    ("16.1", "forgets the seconds", [61.0, 60.0, 2.44, 0.28]),
    ("16.2", "every error is the machine's", _CALLED | {list(_CALLED)[2]: "hardware"}),
    ("16.2", "an Xid is the machine's", _CALLED | {list(_CALLED)[1]: "hardware"}),
    ("16.2", "any limit is a fault", _CALLED | {list(_CALLED)[4]: "hardware"}),
    ("16.2", "leaves one out", dict(list(_CALLED.items())[:7])),
    ("16.3", "only the bytes of one direction", [20.0, 79.4, 100.0, 22.7]),
    ("16.3", "the algorithm's bandwidth", [39.7, 158.8, 50.4, 45.4]),
    ("16.4", "adds what is missing only", _LINE.format("--gpus all --device=/dev/kfd")),
    ("16.4", "leaves /dev/dri", _LINE.format("--gpus all --device=/dev/dri")),
    ("16.4", "only removes", _LINE.format("")),
    ("16.4", "loses the data", _MENDED.replace("-v /data/llama:/root/llama", "")),
    ("16.4", "loses the shared memory", _MENDED.replace("--shm-size=16G", "")),
    ("16.4", "not docker", "podman run llama:24.05"),
    ("16.5", "requests alone", _pod(_limits)),
    ("16.5", "may do anything", _pod(_privileged)),
    ("16.5", "may not lock memory", _pod(_no_lock)),
    ("16.5", "shared memory on a disk", _pod(_disk)),
    ("16.5", "fewer GPUs", _pod(_four)),
    ("16.5", "no RDMA", _pod(_without_rdma)),
    ("16.5", "no YAML", "spec: ["),
    ("16.5", "not a pod", "kind: Pod"),
    ("16.6", "the sleeper complains", _WHO | {list(_WHO)[1]: [2]}),
    ("16.6", "the sleeper has recorded it", _WHO | {list(_WHO)[2]: 7}),
    ("16.6", "all who sleep are named", _WHO | {list(_WHO)[4]: [1, 3]}),
    ("16.6", "those who wait are named", _WHO | {list(_WHO)[5]: [0, 2]}),
    ("16.7", "shares the loss", [1.025, 1.0002, 1.0256, 425.9]),
    ("16.7", "the whole step", [1.25, 1.25, 1.0256, 425.9]),
    ("16.7", "three deviations for all", [1.2, 1.2, 1.0256, 1600.0]),
    ("16.8", "who waits most", lambda total, inside: _at(map(sum, inside))),
    ("16.8", "who takes longest", lambda total, inside: _at(map(sum, total))),
    ("16.8", "somebody always is", lambda total, inside: _at(_own(total, inside, median))),
    ("16.8", "the sum of the updates", lambda total, inside: _twice(_own(total, inside, sum))),
    ("16.8", "1.2 times", lambda total, inside: _twice(_own(total, inside, median), 1.2)),
    ("16.9", "all false", dict.fromkeys(_TRUE, False)),
    ("16.9", "all true", dict.fromkeys(_TRUE, True)),
    ("16.10", "small is rounding", _JUDGED | {"fp64, off by 1e-7": "rounding"}),
    ("16.10", "large is a bug", _JUDGED | {"stored in bf16, off by 3e-3": "more than rounding"}),
    ("16.10", "always knows", _JUDGED | {"fp32, off by 3e-5": "more than rounding"}),
    ("16.11", "the ranks that wait", {seed: ((r + 1) % 3, c) for seed, (r, c) in _FOUND.items()}),
    ("16.11", "all are stragglers", {seed: (r, "straggler") for seed, (r, _) in _FOUND.items()}),
    ("16.11", "leaves one out", dict(list(_FOUND.items())[:2])),
    ("16.11", "names no rank", {seed: c for seed, (_, c) in _FOUND.items()}),
]
OTHER_FORMS = [
    ("16.1", "text with units", ["6.1 GB/s", 6, "24.4 %", "2.82 s"]),
    ("16.2", "in another order", dict(reversed(_CALLED.items()))),
    ("16.4", "devices by name", _LINE.format("--gpus=all --ulimit memlock=-1")),
    ("16.4", "the host's shared memory", _MENDED.replace("--shm-size=16G", "--ipc=host")),
    ("16.5", "as a dict", _POD),
    ("16.5", "limits alone", _pod(lambda pod, one: one["resources"].pop("requests"))),
    ("16.6", "tuples", {q: tuple(r) if isinstance(r, list) else r for q, r in _WHO.items()}),
    ("16.8", "by another way", lambda total, inside: _twice(_own(total, inside, median))),
    ("16.11", "lists", {seed: list(pair) for seed, pair in _FOUND.items()}),
]
