"""The options that commands share about the theory's inputs: each is added and read here."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.cli.text import MOST_DIGITS, add_text_options, count, number, spelled, yes_or_no

if TYPE_CHECKING:
    from course_lib.theory.inputs.hardware import Accelerator, Cluster, Link
    from course_lib.theory.inputs.job import Job
    from course_lib.theory.inputs.layout import Layout
    from course_lib.theory.inputs.shape import TransformerShape
    from course_lib.theory.step.assumptions import Assumptions

GPU = "H100-SXM"
RECIPE = "mixed-16"
# The planner tries every divisor of these: more than any cluster has, and no long wait for a typo.
MOST_NODES = 10**6
MOST_GB_PER_S, MOST_LATENCY_US = 10**6, 10**6

# What replaces a size of the model: the fields of TransformerShape, by kind.
_SHAPE_COUNTS = {
    "--layers": "layers",
    "--hidden": "width of the residual stream",
    "--heads": "query heads",
    "--kv-heads": "key-value heads (default: the model's, or --heads if it has as many)",
    "--head-dim": "numbers of one head",
    "--ffn": "width of the MLP",
    "--vocab": "tokens of the vocabulary",
    "--context": "longest sequence",
    "--experts": "routed experts of a layer, 0 for none",
    "--top-k": "experts that a token uses",
    "--shared-experts": "experts that all tokens use",
    "--expert-ffn": "width of one expert",
    "--dense-layers": "first layers that have no experts",
    "--layer-norms": "norms of a layer, 2 or as many as 4",
}
_SHAPE_NAMES = {
    "--mlp": "gelu (two matrices) or swiglu (three)",
    "--norm": "layernorm, rmsnorm or plain, which has no weights",
    "--attention-biases": "none, qkv or all",
    "--qk-norm": "none, head or all: norms of queries and keys",
}
_SHAPE_FLAGS = {
    "--biases": "a bias in every matrix but router and head",
    "--learned-positions": "a table of positions",
    "--tied-embeddings": "the embedding is the head as well",
    "--shared-gate": "the router weighs the shared experts",
}
_RECIPE_NAMES = {
    "--optimizer": "adamw (default), adamw-bf16, adamw-8bit, momentum or sgd",
    "--attention": "flash (default) or standard, which stores the scores",
    "--parameters": "bf16, fp16, or fp32 without a master copy (default: as the recipe)",
    "--gradients": "bf16, fp16, or fp32 without a buffer (default: as the recipe)",
    "--compute": "precision of the passes, where it is not that of the parameters",
    "--gradient-life": "always (default), or backward: from there to the update, as in PyTorch",
    "--update": "fused (default), copied or foreach: what the optimizer's step makes beside it",
    "--loss": "in-place (default), eager, fused or chunked: copies of the logits",
}
_RECIPE_FLAGS = {
    "--master-copy": "fp32 weights beside 16-bit ones (default: as the recipe)",
    "--gradient-buffer": "fp32 gradients beside 16-bit ones (default: as the recipe)",
    "--dropout": "its masks are kept (default: no)",
}
_LAYOUT_COUNTS = {
    "--micro-batch": "sequences of one forward pass (default: 1)",
    "--dp": "data parallel ranks",
    "--tp": "tensor parallel ranks",
    "--pp": "pipeline stages",
    "--cp": "context parallel ranks",
    "--ep": "expert parallel ranks, of the dp·cp ones",
    "--virtual-stages": "chunks of layers on each rank, for --schedule interleaved",
    "--accumulation": "micro-batches of one update (default: as many as fill the pipeline)",
    "--zero-stage": "0 (default), 1, 2 or 3",
    "--shard-group": "ranks over which ZeRO shards (default: dp·cp; fewer are HSDP)",
}
_LAYOUT_NAMES = {
    "--schedule": "1f1b (default), gpipe, interleaved, zb1p, zbv, dualpipe or naive",
    "--reduce": "when gradients are exchanged: micro-batch, group or update (default: as late as "
    "ZeRO's stage allows)",
}


@dataclass(frozen=True)
class Model:
    """A model with its name in words; `not_counted`: what its shape leaves out.

    `constants`: the numbers and functions that change no size.
    """

    name: str
    shape: "TransformerShape"
    not_counted: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def notes(self) -> str:
        """A line for each part that is not counted, each with its end."""
        return "".join(f"not counted: {part}\n" for part in self.not_counted)

    @property
    def size(self) -> str:
        """A line with the parameters, and those that a token meets."""
        count = self.shape.parameters()
        active = f", {count.active:,} of them active" if count.active < count.total else ""
        return f"{count.total:,} parameters{active}\n"

    def data(self) -> dict[str, Any]:
        """What JSON says about the model."""
        shape, count = asdict(self.shape), self.shape.parameters()
        sizes = {"parameters": count.total, "active_parameters": count.active}
        return {"model": self.name, "shape": shape, **sizes, "not_counted": list(self.not_counted)}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, --sequence, and an option for each size of a model."""
    about = (
        "such as llama3-8b, or the path of a Hugging Face config.json or of its folder; without "
        "it the models are listed"
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help=about)
    about = "tokens of a sequence (default: the model's context)"
    add_text_options(parser, {"--sequence": about})
    group = parser.add_argument_group("sizes in place of the model's")
    add_text_options(group, _SHAPE_COUNTS)
    add_text_options(group, _SHAPE_NAMES, "NAME")
    add_text_options(group, _SHAPE_FLAGS, "yes|no")


def model(arguments: argparse.Namespace) -> Model:
    """A preset, small or capital letters, or a configuration, with the sizes that are given."""
    from course_lib.validation import told

    found = _named(arguments)
    changes = {
        **_given(arguments, _SHAPE_COUNTS, count),
        **_given(arguments, _SHAPE_NAMES, getattr),
        **_given(arguments, _SHAPE_FLAGS, yes_or_no),
    }
    if not changes:
        return found
    words = ", ".join(f"{name} {told(value)}" for name, value in changes.items())
    follows = "heads" in changes and found.shape.kv_heads == found.shape.heads
    if follows and "kv_heads" not in changes:
        changes["kv_heads"] = changes["heads"]
    return replace(found, name=f"{found.name} with {words}", shape=replace(found.shape, **changes))


def _named(arguments: argparse.Namespace) -> Model:
    """The model as it is published."""
    from course_lib.theory.inputs.huggingface import read_configuration
    from course_lib.theory.inputs.models import CONSTANTS, MODELS
    from course_lib.theory.inputs.models import model as preset

    text: str | None = arguments.model
    if text is None:
        names = ", ".join(MODELS)
        raise ValueError(f"model is missing: give the path of a config.json, or one of {names}")
    name = spelled(text, MODELS)
    if name in MODELS or not _is_path(text):
        return Model(name, preset(name), constants=CONSTANTS.get(name, {}))
    read = read_configuration(text)
    name = f"{text} ({read.model_type})"
    return Model(name, read.shape, read.not_counted, read.constants)


def _is_path(text: str) -> bool:
    """Whether this is meant as a file or a folder and not as the name of a preset."""
    return "/" in text or "\\" in text or text.endswith(".json") or Path(text).exists()


def _given(
    arguments: argparse.Namespace, options: Iterable[str], read: Callable[..., Any]
) -> dict[str, Any]:
    """Those of `options` that were given, by the name of the field that each is about."""
    names = (option.removeprefix("--").replace("-", "_") for option in options)
    given = [name for name in names if getattr(arguments, name, None) is not None]
    return {name: read(arguments, name) for name in given}


def sequence(arguments: argparse.Namespace, shape: "TransformerShape") -> int:
    """Tokens of a sequence; the model's context unless it is given, in digits."""
    from course_lib.validation import told

    text: str | None = arguments.sequence
    if text is None:
        return shape.context
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise ValueError(
            f"sequence {told(text)} is not a number of tokens: write all digits, such as 4096 "
            "(4k may mean 4000)"
        )
    return int(text)


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """Add --gpu."""
    add_text_options(parser, {"--gpu": f"which GPU (default: {GPU})"}, "NAME")


def gpu(arguments: argparse.Namespace) -> "Accelerator":
    """The accelerator of --gpu."""
    from course_lib.theory.inputs.hardware import ACCELERATORS, accelerator

    return accelerator(spelled(arguments.gpu or GPU, ACCELERATORS))


def add_cluster(parser: argparse.ArgumentParser, nodes: str = "1") -> None:
    """Add --gpu, --nodes, --gpus-per-node, and the speed of both kinds of links."""
    add_gpu(parser)
    group = parser.add_argument_group("network")
    counts = {
        "--nodes": f"number of nodes (default: {nodes})",
        "--gpus-per-node": "GPUs of one node (default: 8)",
    }
    add_text_options(group, counts)
    for place, where in (("inside", "inside a node"), ("between", "between nodes")):
        speeds = {
            f"--{place}-gb-per-s": f"what a GPU sends one way {where} (default: the GPU's link)",
            f"--{place}-latency-us": f"microseconds of a message {where} (default: the GPU's link)",
        }
        add_text_options(group, speeds, "X")


def cluster(arguments: argparse.Namespace, gpus: int | None = None) -> "Cluster":
    """The cluster of --gpu, --nodes, --gpus-per-node and the links; unless told, of `gpus`."""
    from course_lib.theory.inputs.hardware import Cluster

    chip = gpu(arguments)
    gpus_per_node = count(arguments, "gpus_per_node", min(8, gpus or 8), least=1, most=MOST_NODES)
    nodes = count(arguments, "nodes", -(-(gpus or 1) // gpus_per_node), most=MOST_NODES)
    inside = _link(arguments, "inside", chip.inside)
    return Cluster(chip, nodes, gpus_per_node, inside, _between(arguments, chip.between))


def _between(arguments: argparse.Namespace, own: "Link | None") -> "Link | None":
    """The link between nodes; a GPU without one gets what is given, with a network's latency."""
    from course_lib.theory.inputs.hardware import NETWORK_LATENCY_S, Link

    if own is not None:
        return _link(arguments, "between", own)
    if arguments.between_gb_per_s is not None:
        return _link(arguments, "between", Link("network", 1e9, NETWORK_LATENCY_S))
    if arguments.between_latency_us is not None:
        raise ValueError(
            f"between_latency_us {arguments.between_latency_us} is of no link, since the GPU has "
            "none between nodes: add --between-gb-per-s 50"
        )
    return None


def _link(arguments: argparse.Namespace, place: str, own: "Link") -> "Link":
    """The GPU's own link at `place` with what is given of it."""
    from course_lib import validation
    from course_lib.theory.inputs.hardware import Link

    speed, latency = f"{place}_gb_per_s", f"{place}_latency_us"
    gb_per_s = number(arguments, speed, own.bytes_per_s / 1e9)
    microseconds = number(arguments, latency, own.latency_s * 1e6)
    validation.number(speed, gb_per_s, above=0, most=MOST_GB_PER_S)
    validation.number(latency, microseconds, least=0, most=MOST_LATENCY_US)
    return Link(own.name, gb_per_s * 1e9, microseconds / 1e6)


def add_recompute(parser: argparse.ArgumentParser) -> None:
    """Add --recompute, whose text the theory reads."""
    about = "none (default), selective, operators or full"
    add_text_options(parser, {"--recompute": about}, "NAME")


def add_layout(parser: argparse.ArgumentParser) -> None:
    """Add an option for each degree, for the batch, ZeRO and the pipeline's schedule."""
    group = parser.add_argument_group("how it is spread")
    add_text_options(group, _LAYOUT_COUNTS)
    add_text_options(group, _LAYOUT_NAMES, "NAME")
    about = "layers of each stage in the order of the model, such as 5,6,6,5 (default: evenly)"
    add_text_options(group, {"--stage-layers": about}, "N,N,…")
    add_text_options(group, {"--reshard": "ZeRO-3 frees a layer behind each pass"}, "yes|no")
    group.add_argument("--sequence-parallel", action="store_true", help="tp cuts norms as well")


def _layout(arguments: argparse.Namespace) -> dict[str, Any]:
    """The chosen of a layout that are asked for, and micro-batches that fill the pipeline."""
    from course_lib.validation import told

    given = _given(arguments, _LAYOUT_COUNTS, count) | _given(arguments, _LAYOUT_NAMES, getattr)
    given |= _given(arguments, ("--reshard",), yes_or_no)
    # No more micro-batches than this are ever in flight, under any schedule but gpipe.
    twice = given.get("schedule") in ("interleaved", "zbv", "dualpipe")
    chosen = {"accumulation": given.get("pp", 1) * (2 if twice else 1), **given}
    if arguments.sequence_parallel:
        chosen["sequence_parallel"] = True
    text: str | None = arguments.stage_layers
    if text is not None:
        parts = text.split(",")
        if not all(part.isdecimal() and len(part) < MOST_DIGITS for part in parts):
            raise ValueError(f"stage_layers {told(text)} are not numbers: write them like 5,6,6,5")
        chosen["stage_layers"] = tuple(map(int, parts))
    return chosen


def words(layout: "Layout") -> str:
    """The number of GPUs, and the fields of a layout that are not at their default."""
    values = {field.name: getattr(layout, field.name) for field in fields(layout)}
    standard = {field.name: field.default for field in fields(layout)}
    chosen = [f"{name}={value}" for name, value in values.items() if value != standard[name]]
    gpus = f"{layout.world:,} GPU{'s' * (layout.world > 1)}"
    return f"{gpus} ({' '.join(chosen)})" if chosen else gpus


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add --framework, --recipe, and an option for each precision, the optimizer and attention."""
    about = f"{RECIPE} (default), megatron-18, accumulate-20 or fp32-16: bytes per parameter"
    group = parser.add_argument_group("how it is trained")
    does = (
        "what no other option says is as in torchtitan, thunder, torchtune, automodel, "
        "llm-foundry, megatron-deepspeed or megatron-lm"
    )
    add_text_options(group, {"--framework": does, "--recipe": about, **_RECIPE_NAMES}, "NAME")
    compiled = "with --framework: under torch.compile (default: no)"
    add_text_options(group, {"--compiled": compiled, **_RECIPE_FLAGS}, "yes|no")


def job(arguments: argparse.Namespace, shape: "TransformerShape") -> "Job":
    """One step, as far as the command has options for it: recipe, layout, cluster, framework.

    What an option says holds whatever the framework does.
    """
    from course_lib.theory.inputs.job import Job, as_framework_does
    from course_lib.theory.inputs.layout import Layout
    from course_lib.theory.inputs.recipe import RECIPES
    from course_lib.validation import choice

    name = spelled(arguments.recipe or RECIPE, RECIPES)
    choice("recipe", name, RECIPES)
    chosen = _layout(arguments) if hasattr(arguments, "dp") else {}
    spread = Layout(**chosen)
    gpus = spread.world if chosen else None
    place = {"cluster": cluster(arguments, gpus)} if hasattr(arguments, "nodes") else {}
    length = sequence(arguments, shape)
    made = Job(shape, RECIPES[name], spread, sequence=length, **place)
    compiled = arguments.compiled is not None and yes_or_no(arguments, "compiled")
    habits = framework(arguments)
    if habits is not None:
        made = as_framework_does(made, habits, compiled=compiled)
    elif compiled:
        raise ValueError("compiled changes what a framework does: add --framework torchtitan")
    changed = replace(made.recipe, **_recipe_changes(arguments))
    return replace(made, recipe=changed, layout=replace(made.layout, **chosen))


def framework(arguments: argparse.Namespace) -> str | None:
    """The name of --framework, small or capital letters."""
    from course_lib.theory.inputs.job import FRAMEWORKS

    return None if arguments.framework is None else spelled(arguments.framework, FRAMEWORKS)


def assumptions(arguments: argparse.Namespace, usual: "Assumptions") -> "Assumptions":
    """The usual assumptions about a step with what --framework does."""
    from course_lib.theory.step.assumptions import framework_assumptions

    name = framework(arguments)
    return usual if name is None else framework_assumptions(name, usual)


def _recipe_changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options change of a recipe."""
    changes = _given(arguments, (*_RECIPE_NAMES, "--recompute"), getattr)
    changes |= _given(arguments, _RECIPE_FLAGS, yes_or_no)
    if changes.get("parameters") == "fp32":
        changes = {"master_copy": False, **changes}
    if changes.get("gradients") == "fp32":
        changes = {"gradient_buffer": False, **changes}
    return changes
