"""Each TrainJob goes through Kubeflow's own types and comes back whole; its pod is a valid one."""

import copy
import json
import re

import pytest
import yaml
from plans import JOBS

from course_lib import cli, demos, emitting

pytest.importorskip("kubeflow_trainer_api")
pytest.importorskip("kubernetes_validate")
import kubernetes_validate
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

pytestmark = pytest.mark.engine("kubeflow_trainer_api", "kubernetes_validate")
NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # RFC 1123, which Kubernetes' schemas leave out


def check(manifest):
    """Raise ValueError where a key or a value is not one of a TrainJob's.

    Kubeflow's types drop keys that they do not know, so that what comes back is compared.
    """
    back = json.loads(TrainerV1alpha1TrainJob.from_dict(copy.deepcopy(manifest)).to_json())
    if back != manifest:
        raise ValueError(f"came back as {back}")
    trainer = manifest["spec"]["trainer"]
    container = {key: trainer[key] for key in ("image", "command")}
    container |= {"name": "node", "resources": trainer["resourcesPerNode"]}
    patched = the_pod(manifest)
    container |= {"env": trainer.get("env", []), **patched["containers"][0]}
    metadata = {"name": manifest["metadata"]["generateName"] + "x"}
    if not re.fullmatch(NAME, metadata["name"]):
        raise ValueError(f"{metadata['name']!r} is no name of Kubernetes")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    spec = {"containers": [container], "volumes": patched["volumes"]}
    kubernetes_validate.validate(pod | {"spec": spec}, "1.33", strict=True)


def the_pod(manifest):
    """What the job adds to the pods of the runtime."""
    (patch,) = manifest["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    return node["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", JOBS)
def test_the_job_of_each_plan(name):
    job = JOBS[name]
    text, *_ = emitting.files("trainjob", job, name).values()
    manifest = yaml.safe_load(text)
    check(manifest)
    trainer = manifest["spec"]["trainer"]
    assert trainer["numNodes"] == job.cluster.nodes
    assert trainer["numProcPerNode"] == job.cluster.gpus_per_node
    amounts = trainer["resourcesPerNode"]
    assert amounts["requests"] == amounts["limits"]
    assert amounts["limits"]["nvidia.com/gpu"] == str(job.cluster.gpus_per_node)
    assert set(amounts["limits"]) == {"cpu", "memory", "nvidia.com/gpu"}
    mounts = the_pod(manifest)["containers"][0]["volumeMounts"]
    assert [mount["mountPath"] for mount in mounts] == ["/dev/shm", "/plan"]
    assert ("three_d" in trainer["command"]) == (name == "demo")


@pytest.mark.parametrize("name", demos.DEMOS)
def test_the_job_of_each_demo(name, capsys):
    assert cli.main(["demo", name, "--emit", "trainjob", "--ranks", "4", "--json"]) == 0
    manifest = yaml.safe_load(capsys.readouterr().out)
    check(manifest)
    trainer = manifest["spec"]["trainer"]
    assert trainer["command"] == ["torchrun", "-m", "course_lib.demos", name, "--json"]
    assert trainer["numNodes"] * trainer["numProcPerNode"] == 4
    assert manifest["spec"]["runtimeRef"] == {"name": "torch-distributed"}
