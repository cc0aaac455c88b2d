"""How a model is distributed over GPUs: parallel degrees, batch and pipeline schedule."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from course_lib.checked import Count, CountOrZero, check_public
from course_lib.theory.inputs.schedule_rules import (
    MOST_CHUNKS,
    MOST_STAGES,
    SCHEDULES,
    Moments,
    check_schedule,
    full_moments,
    stage_chunks,
)
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.validation import divisible, told, whole

ZeroStage = Annotated[int, partial(whole, least=0, most=3)]


@dataclass(frozen=True)
class Layout:
    """Parallel degrees, ZeRO stage, micro-batches and pipeline schedule.

    dp, tp, pp, cp, ep: data, tensor, pipeline, context and expert parallel degrees. Experts are
    spread over groups of `ep` of the dp·cp ranks that would otherwise hold the same weights, so
    `ep` divides dp·cp and adds no GPUs. `zero_stage`: 1 shards optimizer states over dp·cp,
    2 also gradients, 3 also parameters (ZeRO, arXiv:1910.02054, section 5). `shard_group`: ranks
    over which ZeRO shards, by default all dp·cp; fewer mean hybrid sharding (HSDP), with replicas
    of the shards in each group. `reshard`: under ZeRO-3, True gathers a layer's weights in each
    pass; False keeps all weights gathered until the update. `reduce`: gradients are reduced after
    every "micro-batch", after every "group" of micro-batches of a chunk (Llama 3's pipelines) or
    once per "update"; the default is as late as the ZeRO stage allows. `keep_gathered`: under
    sequence parallelism, True keeps the gathered inputs of column-parallel matrices for the
    backward pass, as DTensor does; False gathers them again, overlapped with computation, as
    Megatron-LM does (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2). `keep_outputs`:
    True keeps a stage's sent outputs until the backward pass, as torch.distributed.pipelining and
    DeepSpeed do; False frees them (Megatron-LM, deallocate_pipeline_outputs). `micro_batch`:
    sequences per forward pass; `accumulation`: micro-batches per update. `virtual_stages`: chunks
    of layers per pipeline rank under "interleaved". `group`: consecutive micro-batches through one
    chunk before the next chunk, by default pp, see `schedule_rules`. `stage_layers`: layers of each
    chunk in model order, 0 for a chunk that holds only the embedding or the head; None spreads them
    evenly and gives the remainder to the first chunks.
    Raises ValueError for degrees that do not divide and schedules that cannot run.
    """

    dp: Count = 1
    tp: Count = 1
    pp: Annotated[int, partial(whole, most=MOST_STAGES)] = 1
    cp: Count = 1
    ep: Count = 1
    zero_stage: ZeroStage = 0
    sequence_parallel: bool = False
    micro_batch: Count = 1
    accumulation: Count = 1
    schedule: Annotated[str, SCHEDULES] = "1f1b"
    virtual_stages: Count = 1
    group: Count | None = None
    stage_layers: tuple[CountOrZero, ...] | None = None
    shard_group: Count | None = None
    reshard: bool = True
    reduce: Annotated[str | None, ("micro-batch", "group", "update")] = None
    keep_gathered: bool = False
    keep_outputs: bool = False

    def __post_init__(self) -> None:
        whole("pp*virtual_stages", self.chunks, most=MOST_CHUNKS)
        divisible("dp*cp", self.dp * self.cp, "ep", self.ep)
        if self.shard_group is not None:
            divisible("dp*cp", self.dp * self.cp, "shard_group", self.shard_group)
            divisible("shard_group", self.shard_group, "ep", self.ep)
        if self.shard_groups > 1 and not self.zero_stage:
            raise ValueError(
                f"shard_group {self.shard_group} has nothing to shard with zero_stage 0: set "
                "zero_stage=1, 2 or 3, or leave shard_group out"
            )
        if not self.reshard and self.zero_stage < 3:
            raise ValueError(
                f"reshard False keeps gathered weights, and zero_stage {self.zero_stage} gathers "
                "none: set zero_stage=3, or reshard=True"
            )
        self._check_schedule()
        if self.stage_layers is not None and len(self.stage_layers) != self.chunks:
            raise ValueError(
                f"stage_layers {told(self.stage_layers)} has {len(self.stage_layers)} entries: "
                f"give {self._pieces} = {self.chunks}"
            )

    def _check_schedule(self) -> None:
        if (self.virtual_stages > 1) != (self.schedule == "interleaved"):
            raise ValueError(
                f"virtual_stages {self.virtual_stages} does not go with schedule "
                f"{self.schedule!r}: interleaved needs 2 or more, every other schedule 1"
            )
        sizes = (self.pp, self.accumulation, self.virtual_stages)
        check_schedule(self.schedule, *sizes, group=self.group, words=("pp", "accumulation"))
        if self.reduce == "group" and self.schedule != "interleaved":
            raise ValueError(
                f"reduce 'group' needs groups of micro-batches, which {self.schedule!r} has not: "
                "set schedule='interleaved', or reduce='micro-batch' or 'update'"
            )

    @property
    def world(self) -> int:
        """Number of GPUs: dp·tp·pp·cp. Expert parallelism adds none."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer update: micro_batch · accumulation · dp."""
        return self.micro_batch * self.accumulation * self.dp

    @property
    def chunks(self) -> int:
        """Chunks into which the layers are split: pp · virtual_stages, or 2·pp under "zbv"."""
        return self.pp * (2 if self.schedule == "zbv" else self.virtual_stages)

    @property
    def _pieces(self) -> str:
        """The formula behind `chunks`, for error messages."""
        return "2*pp" if self.schedule == "zbv" else "pp*virtual_stages"

    @property
    def shard_ranks(self) -> int:
        """Ranks over which ZeRO shards dense weights: `shard_group`, by default dp·cp."""
        return self.shard_group or self.dp * self.cp

    @property
    def expert_shard_ranks(self) -> int:
        """Ranks over which ZeRO shards an expert's weights: shard_ranks / ep."""
        return self.shard_ranks // self.ep

    @property
    def shard_groups(self) -> int:
        """Number of groups that replicate the shards: dp·cp / shard_ranks."""
        return self.dp * self.cp // self.shard_ranks

    @property
    def reduces(self) -> str:
        """When gradients are reduced: `reduce`, or its default ("update" up to ZeRO-1)."""
        return self.reduce or ("update" if self.zero_stage < 2 else "micro-batch")

    @property
    def reductions(self) -> int:
        """Number of gradient reductions per chunk in an update."""
        groups = -(-self.accumulation // (self.group or self.pp))
        return {"update": 1, "group": groups, "micro-batch": self.passes}[self.reduces]

    @property
    def exchanges_each_pass(self) -> bool:
        """Whether dp communicates all through the step: early gradients or ZeRO-3's gathers."""
        return self.reduces != "update" or (self.zero_stage == 3 and self.reshard)

    @property
    def adds_up(self) -> bool:
        """Whether unsharded gradients accumulate over micro-batches under ZeRO-2 or 3."""
        return self.zero_stage >= 2 and self.reduces != "micro-batch" and self.accumulation > 1

    def check(self, shape: TransformerShape, sequence: int | None = None) -> None:
        """Raise ValueError unless this layout can split `shape`, and `sequence` if given.

        tp divides heads and ffn, and one of tp and kv_heads divides the other (with tp above
        kv_heads each key-value head is copied to tp/kv_heads ranks); every chunk has a layer;
        ep divides the experts; cp, and tp under sequence parallelism, divide the sequence.
        """
        divisible("heads", shape.heads, "tp", self.tp)
        if self.tp > shape.kv_heads:
            divisible("tp", self.tp, "kv_heads", shape.kv_heads)
        else:
            divisible("kv_heads", shape.kv_heads, "tp", self.tp)
        divisible("ffn", shape.ffn, "tp", self.tp)
        if shape.experts:
            divisible("experts", shape.experts, "ep", self.ep)
            divisible("expert_ffn", shape.expert_width, "tp", self.tp)
        elif self.ep > 1:
            raise ValueError(f"ep {self.ep} has no experts to spread in this model: set ep=1")
        self.check_chunks(shape)
        if sequence is not None:
            self.check_sequence(sequence)

    def check_sequence(self, sequence: Count) -> None:
        """Raise ValueError unless cp, and tp under sequence parallelism, divide `sequence`."""
        divisible("sequence", sequence, "cp", self.cp)
        if self.sequence_parallel:
            divisible("sequence/cp", sequence // self.cp, "tp", self.tp)

    def check_world(self, world: Count) -> None:
        """Raise ValueError unless dp·tp·pp·cp is exactly `world` GPUs."""
        if self.world != world:
            raise ValueError(
                f"world {world} is not dp*tp*pp*cp = {self.dp}*{self.tp}*{self.pp}*{self.cp} = "
                f"{self.world}: change a degree, or take {self.world} GPUs"
            )

    def check_chunks(self, shape: TransformerShape) -> None:
        """Raise ValueError unless all layers are assigned; without a list, each chunk needs one."""
        if self.stage_layers is not None and sum(self.stage_layers) != shape.layers:
            raise ValueError(
                f"stage_layers {told(self.stage_layers)} sum to {sum(self.stage_layers)}: "
                f"make them sum to the model's {shape.layers} layers"
            )
        if self.stage_layers is None and self.chunks > shape.layers:
            raise ValueError(
                f"{self._pieces} {self.chunks} leaves a stage without a layer: "
                f"take at most {shape.layers}, the model's layers"
            )

    def chunk_layers(self, shape: TransformerShape) -> tuple[int, ...]:
        """Number of layers in each chunk, in model order; they sum to shape.layers."""
        self.check_chunks(shape)
        if self.stage_layers is not None:
            return self.stage_layers
        each, extra = divmod(shape.layers, self.chunks)
        return (each + 1,) * extra + (each,) * (self.chunks - extra)

    def layer_slice(self, shape: TransformerShape, chunk: int) -> tuple[int, int]:
        """Layer range of a chunk: (start, stop), stop exclusive."""
        whole("chunk", chunk, least=0, most=self.chunks - 1)
        if self.stage_layers is not None:
            start = sum(self.stage_layers[:chunk])
            return start, start + self.stage_layers[chunk]
        each, extra = divmod(shape.layers, self.chunks)
        start = chunk * each + min(chunk, extra)
        return start, start + each + (chunk < extra)

    def stage_chunks(self, stage: int) -> tuple[int, ...]:
        """Chunks held by pipeline rank `stage`, see `schedule_rules`: stage, stage + pp, …"""
        return stage_chunks(self.schedule, self.pp, stage, self.virtual_stages)

    def stage_of(self, chunk: int) -> int:
        """The pipeline rank that holds a chunk: chunk % pp; under "zbv" ranks go down, then up.

        Under DualPipe, where two ranks hold it, this is the rank of the first direction.
        """
        whole("chunk", chunk, least=0, most=self.chunks - 1)
        turn, stage = divmod(chunk, self.pp)
        return self.pp - 1 - stage if self.schedule == "zbv" and turn else stage

    def holds_ends(self, stage: int) -> tuple[bool, bool]:
        """(has the embedding, has the head) for pipeline rank `stage`."""
        chunks = self.stage_chunks(stage)
        return 0 in chunks, self.chunks - 1 in chunks

    @property
    def passes(self) -> int:
        """Micro-batches per chunk and update; DualPipe sends half of them in each direction."""
        return self.accumulation // (2 if self.schedule == "dualpipe" else 1)

    def in_flight(self, stage: int) -> dict[int, int]:
        """Micro-batches with activations held by `stage` at its first peak, by chunk."""
        changes, _ = next(self.full_moments(stage))
        chunks = self.stage_chunks(stage)
        return {chunks[index]: count for index, count in changes}

    def full_moments(self, stage: int) -> Moments:
        """Moments at which `stage` may hold most activations: `schedule_rules.full_moments`."""
        sizes = (self.pp, self.accumulation, self.virtual_stages)
        return full_moments(self.schedule, *sizes, stage=stage, group=self.group)


ALONE = Layout()  # one GPU


check_public(globals())
