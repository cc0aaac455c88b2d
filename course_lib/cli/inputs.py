"""Options for the theory's inputs, shared by commands: adds them to parsers and reads them."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.cli.options import (
    MOST_DIGITS,
    Options,
    add,
    count,
    digits,
    given,
    number,
    plain,
    spelled,
    yes_or_no,
)
from course_lib.validation import choice, told

if TYPE_CHECKING:
    from course_lib.theory.inputs.hardware import Accelerator, Cluster, Link
    from course_lib.theory.inputs.job import Job
    from course_lib.theory.inputs.layout import Layout
    from course_lib.theory.inputs.shape import TransformerShape
    from course_lib.theory.step.assumptions import Assumptions

GPU = "H100-SXM"
RECIPE = "mixed-16"
# The planner tries every divisor: these limits exceed any cluster and keep a typo from taking long.
MOST_NODES = 10**6
MOST_GB_PER_S, MOST_LATENCY_US = 10**6, 10**6


def _stage_layers(name: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and len(part) < MOST_DIGITS for part in parts):
        raise ValueError(f"{name} {told(text)} are not numbers: write them like 5,6,6,5")
    return tuple(map(int, parts))


# Options that replace a size of the model.
_SHAPE: Options = {
    "layers": (count, "layers"),
    "hidden": (count, "width of the residual stream"),
    "heads": (count, "query heads"),
    "kv_heads": (count, "key-value heads (default: the model's, or --heads if it has as many)"),
    "head_dim": (count, "numbers of one head"),
    "ffn": (count, "width of the MLP"),
    "vocab": (count, "tokens of the vocabulary"),
    "context": (count, "longest sequence"),
    "experts": (count, "routed experts of a layer, 0 for none"),
    "top_k": (count, "experts that a token uses"),
    "shared_experts": (count, "experts that all tokens use"),
    "expert_ffn": (count, "width of one expert"),
    "dense_layers": (count, "first layers that have no experts"),
    "layer_norms": (count, "norms of a layer, 2 or as many as 4"),
    "mlp": (plain, "gelu (two matrices) or swiglu (three)"),
    "norm": (plain, "layernorm, rmsnorm or plain, which has no weights"),
    "attention_biases": (plain, "none, qkv or all"),
    "qk_norm": (plain, "none, head or all: norms of queries and keys"),
    "biases": (yes_or_no, "a bias in every matrix but router and head"),
    "learned_positions": (yes_or_no, "a table of positions"),
    "tied_embeddings": (yes_or_no, "the embedding is the head as well"),
    "shared_gate": (yes_or_no, "the router weighs the shared experts"),
}
_RECIPE: Options = {
    "optimizer": (plain, "adamw (default), adamw-bf16, adamw-8bit, momentum or sgd"),
    "attention": (plain, "flash (default) or standard, which stores the scores"),
    "parameters": (plain, "bf16, fp16, or fp32 without a master copy (default: as the recipe)"),
    "gradients": (plain, "bf16, fp16, or fp32 without a buffer (default: as the recipe)"),
    "compute": (plain, "precision of the passes, where it is not that of the parameters"),
    "gradient_life": (
        plain,
        "always (default), or backward: from there to the update, as in PyTorch",
    ),
    "update": (
        plain,
        "fused (default), copied or foreach: what the optimizer's step makes beside it",
    ),
    "loss": (plain, "in-place (default), eager, fused or chunked: copies of the logits"),
    "master_copy": (yes_or_no, "fp32 weights beside 16-bit ones (default: as the recipe)"),
    "gradient_buffer": (yes_or_no, "fp32 gradients beside 16-bit ones (default: as the recipe)"),
    "dropout": (yes_or_no, "its masks are kept (default: no)"),
}
_LAYOUT: Options = {
    "micro_batch": (count, "sequences of one forward pass (default: 1)"),
    "dp": (count, "data parallel ranks"),
    "tp": (count, "tensor parallel ranks"),
    "pp": (count, "pipeline stages"),
    "cp": (count, "context parallel ranks"),
    "ep": (count, "expert parallel ranks, of the dp·cp ones"),
    "virtual_stages": (count, "chunks of layers on each rank, for --schedule interleaved"),
    "accumulation": (count, "micro-batches of one update (default: as many as fill the pipeline)"),
    "zero_stage": (count, "0 (default), 1, 2 or 3"),
    "shard_group": (count, "ranks over which ZeRO shards (default: dp·cp; fewer are HSDP)"),
    "schedule": (plain, "1f1b (default), gpipe, interleaved, zb1p, zbv, dualpipe or naive"),
    "reduce": (
        plain,
        "when gradients are exchanged: micro-batch, group or update (default: as late as "
        "ZeRO's stage allows)",
    ),
    "stage_layers": (
        _stage_layers,
        "layers of each stage in the order of the model, such as 5,6,6,5 (default: evenly)",
    ),
    "reshard": (yes_or_no, "ZeRO-3 frees a layer behind each pass"),
}


@dataclass(frozen=True)
class Model:
    """A model: name, shape, and `not_counted`, the parts that the shape does not include.

    `constants`: numbers and functions of the model that change no size.
    """

    name: str
    shape: "TransformerShape"
    not_counted: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def notes(self) -> str:
        """A newline-terminated line for each part that is not counted."""
        return "".join(f"not counted: {part}\n" for part in self.not_counted)

    @property
    def size(self) -> str:
        """A line with the number of parameters, and of those that are active for a token."""
        count = self.shape.parameters()
        active = f", {count.active:,} of them active" if count.active < count.total else ""
        return f"{count.total:,} parameters{active}\n"

    def data(self) -> dict[str, Any]:
        """The model's entries in the JSON output."""
        shape, count = asdict(self.shape), self.shape.parameters()
        sizes = {"parameters": count.total, "active_parameters": count.active}
        return {"model": self.name, "shape": shape, **sizes, "not_counted": list(self.not_counted)}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, --sequence, and an option for each size of a model to a parser."""
    about = (
        "such as llama3-8b, or the path of a Hugging Face config.json or of its folder; without "
        "it the models are listed"
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help=about)
    add(parser, {"sequence": (_tokens, "tokens of a sequence (default: the model's context)")})
    add(parser.add_argument_group("sizes in place of the model's"), _SHAPE)


def _tokens(name: str, text: str) -> int:
    remedy = "write all digits, such as 4096 (4k may mean 4000)"
    return digits(name, text, "a number of tokens", remedy)


def model(arguments: argparse.Namespace) -> Model:
    """The preset (in any case) or configuration of MODEL, with the sizes that options replace."""
    base, changes = _named(arguments.model), given(arguments, _SHAPE)
    if not changes:
        return base
    words = ", ".join(f"{name} {told(value)}" for name, value in changes.items())
    follows = "heads" in changes and base.shape.kv_heads == base.shape.heads
    if follows and "kv_heads" not in changes:
        changes["kv_heads"] = changes["heads"]
    return replace(base, name=f"{base.name} with {words}", shape=replace(base.shape, **changes))


def _named(text: str | None) -> Model:
    """The model as published, a preset or a Hugging Face configuration."""
    from course_lib.theory.inputs.huggingface import read_configuration
    from course_lib.theory.inputs.models import CONSTANTS, MODELS
    from course_lib.theory.inputs.models import model as preset

    if text is None:
        names = ", ".join(MODELS)
        raise ValueError(f"model is missing: give the path of a config.json, or one of {names}")
    name = spelled(text, MODELS)
    is_path = "/" in text or "\\" in text or text.endswith(".json") or Path(text).exists()
    if name in MODELS or not is_path:
        return Model(name, preset(name), constants=CONSTANTS.get(name, {}))
    read = read_configuration(text)
    name = f"{text} ({read.model_type})"
    return Model(name, read.shape, read.not_counted, read.constants)


def sequence(arguments: argparse.Namespace, shape: "TransformerShape") -> int:
    """Tokens of a sequence: --sequence, else the model's context."""
    length: int | None = arguments.sequence
    return shape.context if length is None else length


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """Add --gpu."""
    add(parser, {"gpu": (plain, f"which GPU (default: {GPU})")})


def gpu(arguments: argparse.Namespace) -> "Accelerator":
    """The accelerator of --gpu."""
    from course_lib.theory.inputs.hardware import ACCELERATORS, accelerator

    return accelerator(spelled(arguments.gpu or GPU, ACCELERATORS))


def add_cluster(parser: argparse.ArgumentParser, nodes: str = "1") -> None:
    """Add --gpu, --nodes, --gpus-per-node, and the speed of both kinds of links."""
    add_gpu(parser)
    group = parser.add_argument_group("network")
    gpus_per_node = partial(count, least=1, most=MOST_NODES)
    speed = partial(number, above=0, most=MOST_GB_PER_S)
    latency = partial(number, least=0, most=MOST_LATENCY_US)
    own = "(default: the GPU's link)"
    options: Options = {
        "nodes": (partial(count, most=MOST_NODES), f"number of nodes (default: {nodes})"),
        "gpus_per_node": (gpus_per_node, "GPUs of one node (default: 8)"),
        "inside_gb_per_s": (speed, f"what a GPU sends one way inside a node {own}"),
        "inside_latency_us": (latency, f"microseconds of a message inside a node {own}"),
        "between_gb_per_s": (speed, f"what a GPU sends one way between nodes {own}"),
        "between_latency_us": (latency, f"microseconds of a message between nodes {own}"),
    }
    add(group, options)


def cluster(arguments: argparse.Namespace, gpus: int = 0) -> "Cluster":
    """The cluster that the options describe; by default just large enough for `gpus` GPUs."""
    from course_lib.theory.inputs.hardware import NETWORK_LATENCY_S, Cluster, Link

    chip, sizes = gpu(arguments), given(arguments, ("nodes", "gpus_per_node"))
    gpus_per_node = sizes.get("gpus_per_node", min(8, gpus or 8))
    nodes = sizes.get("nodes", -(-(gpus or 1) // gpus_per_node))
    inside, between = _link(arguments, "inside", chip.inside), chip.between
    if between is None and arguments.between_gb_per_s is not None:
        between = Link("network", 1e9, NETWORK_LATENCY_S)  # its speed is replaced below
    if between is not None:
        between = _link(arguments, "between", between)
    elif arguments.between_latency_us is not None:
        raise ValueError(
            f"between_latency_us {arguments.between_latency_us:g} is of no link, since the GPU has "
            "none between nodes: add --between-gb-per-s 50"
        )
    return Cluster(chip, nodes, gpus_per_node, inside, between)


def _link(arguments: argparse.Namespace, where: str, default: "Link") -> "Link":
    """The link "inside" or "between" nodes, with the speed and latency that options replace."""
    options = given(arguments, (f"{where}_gb_per_s", f"{where}_latency_us"))
    speed = options.get(f"{where}_gb_per_s", default.bytes_per_s / 1e9)
    latency = options.get(f"{where}_latency_us", default.latency_s * 1e6)
    return replace(default, bytes_per_s=speed * 1e9, latency_s=latency / 1e6)


def add_recompute(parser: argparse.ArgumentParser) -> None:
    """Add --recompute, whose value the theory parses."""
    add(parser, {"recompute": (plain, "none (default), selective, operators or full")})


def add_layout(parser: argparse.ArgumentParser) -> None:
    """Add options for each degree of parallelism, the batch, ZeRO and the pipeline schedule."""
    group = parser.add_argument_group("how it is spread")
    add(group, _LAYOUT)
    about = "tp cuts norms as well"
    group.add_argument("--sequence-parallel", action="store_const", const=True, help=about)


def _layout(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of Layout set by options, and enough micro-batches to fill the pipeline."""
    chosen = given(arguments, _LAYOUT)
    chosen |= given(arguments, ("sequence_parallel",))
    # No more micro-batches than this are ever in flight, under any schedule but gpipe.
    twice = chosen.get("schedule") in ("interleaved", "zbv", "dualpipe")
    return {"accumulation": chosen.get("pp", 1) * (2 if twice else 1), **chosen}


def words(layout: "Layout") -> str:
    """The number of GPUs and the layout's fields that differ from the default, as text."""
    from course_lib.theory.inputs.layout import ALONE

    chosen = [f"{k}={v}" for k, v in vars(layout).items() if v != getattr(ALONE, k)]
    gpus = f"{layout.world:,} GPU{'s' * (layout.world > 1)}"
    return f"{gpus} ({' '.join(chosen)})" if chosen else gpus


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add --framework, --recipe, and options for each precision, the optimizer and attention."""
    group = parser.add_argument_group("how it is trained")
    frameworks = (
        "what no other option says is as in torchtitan, thunder, torchtune, automodel, "
        "llm-foundry, megatron-deepspeed or megatron-lm"
    )
    recipes = f"{RECIPE} (default), megatron-18, accumulate-20 or fp32-16: bytes per parameter"
    compiled = "with --framework: under torch.compile (default: no)"
    options: Options = {
        "framework": (plain, frameworks),
        "recipe": (plain, recipes),
        "compiled": (yes_or_no, compiled),
    }
    add(group, {**options, **_RECIPE})


def job(arguments: argparse.Namespace, shape: "TransformerShape") -> "Job":
    """The Job of one training step from the command's options: recipe, layout, cluster, framework.

    An explicit option overrides the framework's habits.
    """
    from course_lib.theory.inputs.job import Job, as_framework_does
    from course_lib.theory.inputs.layout import Layout
    from course_lib.theory.inputs.recipe import RECIPES

    name = spelled(arguments.recipe or RECIPE, RECIPES)
    choice("recipe", name, RECIPES)
    chosen = _layout(arguments) if hasattr(arguments, "dp") else {}
    layout = Layout(**chosen)
    where = {}
    if hasattr(arguments, "nodes"):
        where["cluster"] = cluster(arguments, layout.world if chosen else 0)
    step_job = Job(shape, RECIPES[name], layout, sequence=sequence(arguments, shape), **where)
    habits = framework(arguments)
    if habits is not None:
        step_job = as_framework_does(step_job, habits, compiled=bool(arguments.compiled))
    elif arguments.compiled:
        raise ValueError("compiled changes what a framework does: add --framework torchtitan")
    changes = given(arguments, _RECIPE) | given(arguments, ("recompute",))
    if changes.get("parameters") == "fp32":
        changes = {"master_copy": False, **changes}
    if changes.get("gradients") == "fp32":
        changes = {"gradient_buffer": False, **changes}
    changed = replace(step_job.recipe, **changes)
    return replace(step_job, recipe=changed, layout=replace(step_job.layout, **chosen))


def data(model: Model, job: "Job") -> dict[str, Any]:
    """The entries of a model and its step in the JSON output."""
    return {
        **model.data(),
        "recipe": asdict(job.recipe),
        "layout": asdict(job.layout),
        "gpus": job.layout.world,
        "sequence_tokens": job.sequence,
    }


def framework(arguments: argparse.Namespace) -> str | None:
    """The framework named by --framework, in any case; None without the option."""
    from course_lib.theory.inputs.job import FRAMEWORKS

    return None if arguments.framework is None else spelled(arguments.framework, FRAMEWORKS)


def assumptions(arguments: argparse.Namespace, usual: "Assumptions") -> "Assumptions":
    """`usual` with the assumptions that --framework changes."""
    from course_lib.theory.step.assumptions import framework_assumptions

    name = framework(arguments)
    return usual if name is None else framework_assumptions(name, usual)
