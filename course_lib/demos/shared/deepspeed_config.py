"""DeepSpeed's configuration for ZeRO, key by key.

Source: deepspeed.ai/docs/config-json. Defaults are those of DeepSpeed 0.19.8, runtime/constants.py
and runtime/zero/config.py. Importing this module does not need DeepSpeed. Chapter 8 shows this code
in a notebook, where 79 columns fit without wrapping.
"""

from typing import Any

from course_lib.theory.step.batching import Batching
from course_lib.validation import flag, number, whole


def deepspeed_config(
    stage: int,
    micro_batch: int = 1,
    accumulation: int = 1,
    ranks: int = 1,
    offload: bool = False,
    clip: float = 0.0,
    bf16: bool = False,
) -> dict[str, Any]:
    """The config for `deepspeed.initialize` that matches our own ZeRO.

    In fp32, or in bf16 with fp32 master weights. `clip`: the largest norm of
    the gradient; 0 does not clip. Raises ValueError for a stage that does not
    exist, or for offload without a sharded optimizer.
    """
    whole("stage", stage, least=0, most=3)
    whole("micro_batch", micro_batch)
    whole("accumulation", accumulation)
    whole("ranks", ranks)
    flag("offload", offload)
    flag("bf16", bf16)
    number("clip", clip, least=0)
    if offload and stage == 0:
        raise ValueError("offload True needs a sharded optimizer: set stage to 1, 2 or 3")
    config = {
        # Two of these three suffice. Inconsistent ones are rejected:
        # train_batch_size = micro batch · accumulation · ranks.
        "train_batch_size": _global_batch(micro_batch, accumulation, ranks),
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        # The default is 1.0 (before June 2026: 0): gradients would be
        # clipped, and losses would differ from plain DDP.
        "gradient_clipping": clip,
        "zero_optimization": zero_section(stage, offload),
        # torch's AdamW is on DeepSpeed's list (runtime/zero/utils.py). Other
        # optimizers need "zero_allow_untested_optimizer": True.
    }
    if bf16:
        # It casts the model itself, whatever its dtype, and the weights that
        # the optimizer updates stay fp32. Floating-point inputs have to be
        # cast by hand.
        config["bf16"] = {"enabled": True}
    if offload:
        # By default DeepSpeed requires its own DeepSpeedCPUAdam, which is
        # faster on the host and has to be compiled first; this permits
        # torch's AdamW.
        config["zero_force_ds_cpu_optimizer"] = False
    return config


def _global_batch(micro_batch: int, accumulation: int, ranks: int) -> int:
    samples = micro_batch * accumulation * ranks
    return Batching(samples, micro_batch, accumulation, gpus_per_node=ranks).global_batch


def zero_section(stage: int, offload: bool) -> dict[str, Any]:
    """The part of the configuration about ZeRO."""
    section: dict[str, Any] = {
        "stage": stage,
        # Overlap gradient buckets with backward, on a separate stream. A CPU
        # has none.
        "overlap_comm": False,
        # Elements, not bytes: 5e8, the default, is a buffer of 2 GB in fp32.
        # Small models need less.
        "reduce_bucket_size": 5_000_000,
        "allgather_bucket_size": 5_000_000,
    }
    if stage == 3:
        # Weights smaller than this many elements stay whole on every rank;
        # the default of 100,000 would leave a small model unsharded.
        section["stage3_param_persistence_threshold"] = 0
    if offload:
        # Pinned memory makes copies faster where there is a GPU.
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    return section
