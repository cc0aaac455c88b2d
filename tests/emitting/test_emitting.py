"""What each file says comes from the plan; what an engine cannot do is refused in one sentence."""

import ast
import re
import subprocess
from dataclasses import fields, replace
from functools import cache

import pytest
import yaml
from plans import FSDP, JOBS, PLANS

from course_lib import emitting
from course_lib.demos import three_d
from course_lib.emitting import ENGINES, course, head
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import CONSTANTS
from course_lib.theory.inputs.recipe import MIXED_16, RECIPES
from course_lib.theory.memory.peak import worst_stage
from course_lib.theory.step.step_time import step_time


@pytest.mark.parametrize("target", emitting.TARGETS)
@pytest.mark.parametrize("name", PLANS)
def test_each_engine_runs_its_plans_and_refuses_the_others(target, name):
    job, engines = PLANS[name]
    if target in ENGINES and target not in engines.split():
        words = r"cannot run [^:]+: .+; take another layout or engine$"
        with pytest.raises(ValueError, match=words):
            emitting.files(target, job, name)
        return
    made = emitting.files(target, job, "a\nllama\r\n")  # a name starts no line of its own
    assert target not in ENGINES or f"{target}.sh" in made
    for file, text in made.items():
        check_head(text, job)
        kind = file.rpartition(".")[2]
        if kind == "yaml":
            assert isinstance(yaml.safe_load(text), dict)
        elif kind == "py":
            ast.parse(text)
        elif kind in ("sh", "sbatch"):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def check_head(text, job):
    """The first lines, and that all are short and plain."""
    lines = text.removeprefix("#!/bin/bash\n").splitlines()
    nodes, gpus = job.cluster.nodes, job.cluster.gpus_per_node
    sizes = f"{job.layout.global_batch:,} sequences of {job.sequence:,} tokens"
    assert lines[0] == f"# a llama on {nodes} x {gpus} H100-SXM, {sizes} in an update"
    assert lines[1] == f"# {head.words(job.layout)}"
    memory, step = worst_stage(job)[1].total_bytes, step_time(job).total_s
    assert lines[2].startswith(f"# predicted: {memory / 1e9:.1f} GB on ")
    assert lines[2].endswith(f"; {step:.4g} s a step")
    assert re.fullmatch(r"# written for \w+.* .*\d.*", lines[3])
    assert all(len(line) < 200 for line in lines)
    assert text.isascii()  # engines open it in whatever encoding the machine has


@pytest.mark.parametrize(
    ("target", "job", "words"),
    [
        (
            "slurm",
            replace(JOBS["gpt2 fp32"], layout=Layout()),
            r"world 2 is not dp\*tp\*pp\*cp = 1",
        ),
        ("torchtitn", JOBS["70b"], "emit 'torchtitn' is not one of .*did you mean 'torchtitan'"),
    ],
)
def test_what_no_engine_is_asked_for_is_refused(target, job, words):
    with pytest.raises(ValueError, match=words):
        emitting.files(target, job, "")


def test_the_first_possible_layout_is_named():
    jobs = [JOBS["70b"], JOBS["7b zero-1"], JOBS["7b ddp"]]
    assert emitting.first_possible("megatron", jobs) == 1
    assert emitting.first_possible("deepspeed", jobs) == 2
    assert emitting.first_possible("accelerate", jobs) == 3
    assert emitting.first_possible("accelerate", jobs[:2]) is None


# --- every setting ----------------------------------------------------------------------------

UNEVEN = JOBS["70b uneven, in groups"]
SEVEN = JOBS["7b zero-3"]
TP = Job(SEVEN.shape, FSDP, Layout(dp=4, tp=2, zero_stage=3), sequence=4096)
ALONE = Job(JOBS["mixtral"].shape, MIXED_16, Layout(dp=8), sequence=4096)
BASES = {
    "7b": (SEVEN, ENGINES),
    "7b fsdp": (replace(SEVEN, recipe=FSDP), ("torchtitan", "accelerate")),
    "7b fp32": (replace(SEVEN, recipe=RECIPES["fp32-16"]), ENGINES),
    "7b chunked": (replace(SEVEN, recipe=replace(FSDP, loss="chunked")), ("torchtitan",)),
    "7b tp": (TP, ("torchtitan", "accelerate")),
    "70b": (JOBS["70b interleaved"], ("megatron",)),
    "70b uneven": (replace(UNEVEN, layout=replace(UNEVEN.layout, group=None)), ("megatron",)),
    "70b fsdp": (JOBS["70b interleaved fsdp"], ("torchtitan",)),
    "mixture": (ALONE, ("megatron", "deepspeed", "accelerate")),
}
LAYOUTS = {
    "dp": 4, "tp": 2, "pp": 2, "cp": 2, "ep": 2, "zero_stage": 0, "sequence_parallel": None,
    "micro_batch": 4, "accumulation": 8, "schedule": "gpipe", "virtual_stages": 2, "group": 16,
    "stage_layers": None, "shard_group": 2, "reshard": False, "reduce": "update",
    "keep_gathered": True, "keep_outputs": True,
}  # fmt: skip
RECIPE_CHANGES = {
    "parameters": "fp16", "gradients": "fp32", "optimizer": "sgd", "master_copy": False,
    "gradient_buffer": True, "compute": "fp16", "gradient_life": "backward", "update": "foreach",
    "attention": "standard", "recompute": "full", "recompute_layers": 2, "loss": "chunked",
    "loss_chunks": 4, "dropout": True, "fused_norms": False, "fused_swiglu": True,
    "repeat_kv": True, "imbalance": 1.5, "gathering": "yafsdp", "gathered_units": 3,
    "gradient_as_bucket_view": True, "offload": "optimizer", "fused_accumulation": True,
}  # fmt: skip
# What an engine's own code decides, and no setting of a plan's file could change.
ITS_OWN = {
    *("keep_gathered", "keep_outputs", "gradient_life", "update", "fused_norms", "fused_swiglu"),
    *("repeat_kv", "imbalance", "gradient_as_bucket_view"),
}
# Where one engine has no words for what another has.
NO_WORDS = {
    *(("torchtitan", name) for name in ("dropout", "fused_accumulation")),
    *((engine, name) for engine in ("deepspeed", "accelerate") for name in (
        "loss", "loss_chunks", "dropout", "fused_accumulation",
    )),
    *(("megatron", name) for name in ("loss", "loss_chunks")),
    # Those of a pipeline, of matrices that are cut, and of experts, where there are none of them.
    *((engine, name) for engine in ("deepspeed", "accelerate") for name in (
        "schedule", "virtual_stages", "group", "stage_layers",
    )),
    *((engine, "gathered_units") for engine in ("torchtitan", "megatron", "accelerate")),
    *(("deepspeed", "sequence_parallel"), ("torchtitan", "ep")),
    # Gradients of FSDP are reduced and kept in fp32.
    *((engine, name) for engine in ("torchtitan", "accelerate") for name in (
        "gradients", "gradient_buffer",
    )),
}  # fmt: skip


@cache
def said(engine, job):
    """The files without what shows the plan or comes from its time; or that it is refused."""
    try:
        texts = emitting.files(engine, job, "").values()
    except ValueError as refusal:
        return f"refused: {refusal}"
    behind = [line for text in texts for line in text.split("# written for")[1].splitlines()]
    timed = ("# predicted", "    --save-interval", "SAVE_EVERY", "            interval=")
    return "\n".join(line for line in behind if not line.startswith(timed))


def changed(job, name, value):
    """The job with another value, and whatever else it takes for that to be a plan at all."""
    layout = job.layout
    if name == "sequence_parallel":
        value = not layout.sequence_parallel
    if name == "stage_layers":
        value = (job.shape.layers - layout.chunks + 1, *[1] * (layout.chunks - 1))
    besides = {"schedule": {"virtual_stages": 1}}.get(name, {})
    for more in ({}, {"recompute": "full"}, {"master_copy": False}, {"gradient_buffer": False},
                 {"master_copy": False, "gradients": "fp32"}):  # fmt: skip
        try:
            if name in RECIPE_CHANGES:
                return replace(job, recipe=replace(job.recipe, **{**more, name: value}))
            spread = replace(layout, **besides, **{name: value})
            return Job(job.shape, job.recipe, spread, sequence=job.sequence)
        except ValueError:
            continue
    return None


def test_the_tables_know_every_field():
    assert set(LAYOUTS) == {field.name for field in fields(Layout)}
    assert set(RECIPE_CHANGES) == {field.name for field in fields(MIXED_16)}


@pytest.mark.parametrize("name", [*LAYOUTS, *RECIPE_CHANGES])
def test_every_setting_of_the_plan_is_in_the_file_or_refused(name):
    value, heard = {**LAYOUTS, **RECIPE_CHANGES}[name], set()
    for job, engines in BASES.values():
        other = changed(job, name, value)
        if other is None:
            continue
        for engine in engines:
            before = said(engine, job)
            assert not before.startswith("refused"), before
            if said(engine, other) != before:
                heard.add(engine)
    expected = {engine for engine in ENGINES if (engine, name) not in NO_WORDS}
    assert heard == (set() if name in ITS_OWN else expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_sizes_of_cluster_and_sequence_are_in_the_file(engine):
    job = JOBS["7b zero-3"]
    longer = replace(job, shape=replace(job.shape, context=8192), sequence=8192)
    wider = Job(job.shape, job.recipe, replace(job.layout, dp=16), sequence=4096)
    narrow = replace(wider, cluster=replace(wider.cluster, nodes=4, gpus_per_node=4))
    texts = [said(engine, it) for it in (job, longer, wider, narrow)]
    assert len(set(texts)) == 4 and "refused" not in "".join(texts)


SHAPES = {
    "layers": 30, "hidden": 8192, "heads": 16, "ffn": 12288, "vocab": 64000, "kv_heads": 8,
    "mlp": "gelu", "norm": "layernorm", "biases": True, "learned_positions": True,
    "tied_embeddings": True, "head_dim": 64, "attention_biases": "qkv", "qk_norm": "head",
    "layer_norms": 4,
}  # fmt: skip
MIXTURES = {"experts": 16, "top_k": 3, "shared_experts": 1, "dense_layers": 1}


@pytest.mark.parametrize(
    ("engine", "plan", "change"),
    [
        *((engine, "7b zero-3", it) for engine in ENGINES[:2] for it in SHAPES.items()),
        *(("megatron", "mixtral", it) for it in MIXTURES.items()),
    ],
)
def test_every_size_of_the_model_is_in_the_file_or_refused(engine, plan, change):
    job, sizes = JOBS[plan], dict([change])
    if "heads" in sizes:
        sizes["kv_heads"] = sizes["heads"]
    assert said(engine, job) != said(engine, replace(job, shape=replace(job.shape, **sizes)))


# --- what a model computes beyond its sizes ----------------------------------------------------


def megatrons(constants, shape=None):
    """The flags of a model, without the notes at the head."""
    job = JOBS["8b hybrid zero-1" if shape is None else "mixtral"]
    job = job if shape is None else replace(job, shape=replace(job.shape, **shape))
    return emitting.files("megatron", job, "", constants)["megatron.sh"]


STRETCHED = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("constants", "shape", "flags"),
    [
        (CONSTANTS["llama3-8b"], None, "rotary-base 500000/norm-epsilon 1e-05"),
        (CONSTANTS["llama3.1-8b"], None, "use-rope-scaling/rope-scaling-factor 8.0"),
        ({"rope_theta": 1e6, "rms_norm_eps": 1e-6}, None, "rotary-base 1000000/norm-epsilon 1e-06"),
        ({"partial_rotary_factor": 0.5}, None, "rotary-percent 0.5"),
        (CONSTANTS["mixtral-8x7b"], {}, "moe-aux-loss-coeff 0.02/moe-router-dtype fp32"),
        ({"norm_topk_prob": False}, {}, "moe-router-pre-softmax"),
        ({"norm_topk_prob": True}, {"top_k": 1}, "moe-router-pre-softmax"),
        (CONSTANTS["deepseek-v3"], {}, "moe-router-enable-expert-bias/moe-router-num-groups 8"),
    ],
)
def test_megatron_is_told_what_the_model_computes(constants, shape, flags):
    text = megatrons(constants, shape)
    assert all(f"    --{flag}\n" in text for flag in flags.split("/"))
    other = megatrons({"rms_norm_eps": 1e-5}, None if shape is None else {})
    assert not any(f"    --{flag}\n" in other for flag in flags.split("/")[:1])


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({}, "no preset has this model: rotary base, norm epsilon and router are the defaults"),
        ({"model_type": "gemma"}, "gemma computes more than is written here"),
        ({"rope_scaling": STRETCHED}, "rotary positions are not stretched here, as by yarn"),
    ],
)
def test_what_a_file_leaves_out_is_said_at_its_head(constants, words):
    for target, job in (("megatron", JOBS["70b"]), ("torchtitan", JOBS["7b zero-3"])):
        text, *_ = emitting.files(target, job, "", constants).values()
        assert f"# {words}" in text
    assert words not in megatrons(CONSTANTS["llama3-8b"])


# --- what must be given -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["8b hsdp", "70b", "7b zero-2"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_script_names_what_is_missing_and_starts_with_it(engine, name, tmp_path):
    """Its list is complete: with all of it the launcher is reached, without one it never is."""
    job, engines = PLANS[name]
    if engine not in engines.split():
        return
    emitting.write(emitting.files(engine, job, name), tmp_path)
    for launcher in ("torchrun", "accelerate"):
        (tmp_path / launcher).write_text('#!/bin/bash\nprintf "%s\\n" "$PWD" "$@"\n')
        (tmp_path / launcher).chmod(0o755)
    text = (tmp_path / f"{engine}.sh").read_text()
    names = re.findall(r"^# - ([A-Z]+): ", text, re.MULTILINE)
    given = {each: f"<{each}>" for each in names} | {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    if job.cluster.nodes > 1:
        assert {"HEAD", "PORT"} < set(names)
        given["SLURM_NODEID"] = "1"

    def start(without=None):
        own = {name: value for name, value in given.items() if name != without}
        command = ["bash", str(tmp_path / f"{engine}.sh"), "--more"]
        return subprocess.run(command, env=own, capture_output=True, text=True, cwd="/")

    started = start()
    assert started.returncode == 0, started.stderr
    place, *words = started.stdout.splitlines()
    assert place == str(tmp_path) and words[-1] == "--more"
    if job.cluster.nodes > 1:
        assert "<HEAD>" in started.stdout and "<PORT>" in started.stdout
    for each in set(names) - {"STEPS", "NODE"}:
        missing = start(without=each)
        assert missing.returncode != 0 and missing.stdout == ""
        assert f"{each}: " in missing.stderr and missing.stderr.count("\n") == 1


# --- the programs -----------------------------------------------------------------------------


def test_the_demo_is_asked_for_the_layout_of_the_plan_and_runs_no_other():
    interleaved = Layout(
        tp=2, pp=2, accumulation=4, schedule="interleaved", virtual_stages=2, micro_batch=3
    )
    for layout in (
        JOBS["demo"].layout,
        interleaved,
        Layout(),
        Layout(pp=4, schedule="gpipe", accumulation=2),
    ):
        job = replace(JOBS["demo"], layout=layout)
        words = course.program(job)
        assert words[:3] == ["-m", "course_lib.demos", "three_d"]
        options = dict(zip(words[3::2], words[4::2], strict=True))
        given = {name[2:].replace("-", "_"): value for name, value in options.items()}
        kinds = {field.name: type(field.default) for field in fields(three_d.Options)}
        asked = three_d.Options(**{name: kinds[name](value) for name, value in given.items()})
        assert asked.layout(layout.world) == layout
        assert asked.training().shape() == job.shape
    for change in OTHER_PLANS:
        assert course.program(replace(JOBS["demo"], **change)) == []


FP32 = RECIPES["fp32-16"]
OTHER_PLANS = [
    {"recipe": MIXED_16},
    {"recipe": replace(FP32, recompute="full")},
    {"recipe": replace(FP32, optimizer="sgd")},
    {"layout": Layout(dp=2, zero_stage=1)},
    {"layout": Layout(tp=2, sequence_parallel=True)},
    {"layout": Layout(cp=2)},
    {"layout": Layout(pp=2, accumulation=2, schedule="zb1p")},
    {"sequence": 8},
    {"shape": replace(JOBS["demo"].shape, vocab=129)},
    {"shape": replace(JOBS["demo"].shape, mlp="swiglu")},
]


# --- the folder -------------------------------------------------------------------------------


def test_files_are_written_once_and_never_over_others(tmp_path):
    there = tmp_path / "new" / "folder"
    assert emitting.write({"a": "one\n", "b": "×"}, there) == [there / "a", there / "b"]
    assert (there / "b").read_text(encoding="utf-8") == "×"
    assert emitting.write({"a": "one\n"}, there) == [there / "a"]  # again, the same
    with pytest.raises(ValueError, match="b is there already, with another text: move it away"):
        emitting.write({"c": "", "b": "two"}, there)
    assert sorted(path.name for path in there.iterdir()) == ["a", "b"]
    for wrong in (there / "a" / "below", there / "a"):
        with pytest.raises(ValueError, match=r"cannot be written \(.+\): name a folder of yours"):
            emitting.write({"a": ""}, wrong)
    (there / "plan.sbatch").mkdir()
    with pytest.raises(ValueError, match="cannot be written"):
        emitting.write({"plan.sbatch": ""}, there)
