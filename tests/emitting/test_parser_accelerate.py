"""`accelerate launch` reads its file, and its plugins find in it what the plan says."""

import os

import pytest
import yaml
from plans import of

from course_lib import emitting
from course_lib.emitting.head import precision

pytest.importorskip("accelerate")
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

pytestmark = pytest.mark.engine("accelerate")
PLANS = of("accelerate")


@pytest.fixture
def read(tmp_path, monkeypatch):
    """What the launcher makes of a file, and the variables that its ranks get."""

    def launch(text):
        path = tmp_path / "accelerate.yaml"
        path.write_text(text)
        load_config_from_file(str(path))
        parser = launch_command_parser()
        known = {action.dest for action in parser._actions}
        for section in ("fsdp_config", "parallelism_config"):
            assert set(yaml.safe_load(text).get(section, ())) <= known
        arguments = parser.parse_args(["--config_file", str(path), "train.py"])
        arguments, *_ = _validate_launch_command(arguments)
        if arguments.num_machines > 1:
            arguments.main_process_ip, arguments.main_process_port = "first", 29500
        return arguments, prepare_multi_gpu_env(arguments)

    for name in [name for name in os.environ if name.startswith(("FSDP_", "ACCELERATE_"))]:
        monkeypatch.delenv(name)
    return launch


def in_a_rank(monkeypatch, variables):
    """What a program finds that was started with these variables."""
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    return FullyShardedDataParallelPlugin(), ParallelismConfig()


@pytest.mark.parametrize("name", PLANS)
def test_the_launcher_starts_what_was_planned(name, read):
    job = PLANS[name]
    text, *_ = emitting.files("accelerate", job, name).values()
    arguments, variables = read(text)
    assert (arguments.num_machines, arguments.num_processes) == (
        job.cluster.nodes,
        job.layout.world,
    )
    assert variables["ACCELERATE_MIXED_PRECISION"] == precision(job).replace("fp32", "no")
    assert arguments.use_fsdp == (job.layout.zero_stage == 3)
    assert arguments.multi_gpu == (job.layout.zero_stage == 0)


@pytest.mark.parametrize("name", [name for name, job in PLANS.items() if job.layout.zero_stage])
def test_the_ranks_shard_as_planned(name, read, monkeypatch):
    job = PLANS[name]
    text, *_ = emitting.files("accelerate", job, name).values()
    plugin, spread = in_a_rank(monkeypatch, read(text)[1])
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, job.layout.reshard)
    assert plugin.activation_checkpointing == (job.recipe.recompute == "full")
    assert type(plugin.cpu_offload).__name__ == "OffloadPolicy"  # and not CPUOffloadPolicy
    assert spread.total_size == job.layout.world
    assert spread.dp_replicate_size == job.layout.shard_groups
    assert spread.dp_shard_size * spread.cp_size == job.layout.shard_ranks
    assert (spread.tp_size, spread.cp_size) == (job.layout.tp, job.layout.cp)
