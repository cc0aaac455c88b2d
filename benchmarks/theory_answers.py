"""Answers to the questions of theory_cases.py: this library's, and the usual short formulas."""

from typing import Any

from course_lib.theory.compute.flops import megatron_flop, six_nd, training_flops
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape
from course_lib.theory.memory.peak import gpu_memory
from course_lib.theory.memory.states import model_states
from course_lib.theory.step.step_time import step_time

Question = dict[str, Any]
PEAK = {"a100-sxm-80gb": 312e12, "h100-sxm-80gb": 989e12}
UTILISATION = 0.5  # of the short formula for time: "literature reports up to 0.5"


class CannotError(Exception):
    """The tool has no way to say this; the message is why."""


def shape_of(question: Question) -> TransformerShape:
    """The shape that was sent as plain data."""
    sizes = dict(question["shape"])
    sizes["mla"] = LatentAttention(**sizes["mla"]) if sizes["mla"] else None
    return TransformerShape(**sizes)


class Ours:
    """This library, by its public functions."""

    def parameters(self, question: Question) -> float:
        count = shape_of(question).parameters()
        return count.active if question["active"] else count.total

    def flop(self, question: Question) -> float:
        shape, recompute = shape_of(question), question["recompute"]
        batch = question["sequences"], question["sequence"]
        if recompute == "selective":  # the paper's convention charges the scores three times
            sizes = {"layers": shape.layers, "hidden": shape.hidden, "vocab": shape.vocab}
            return megatron_flop(*batch, **sizes, recompute=recompute)
        return training_flops(shape, *batch, recompute=recompute).hardware_flop

    def states(self, question: Question) -> float:
        recipe = Recipe(
            parameters={2: "bf16", 4: "fp32"}[question["weight_bytes"]],
            gradients={2: "bf16", 4: "fp32"}[question["gradient_bytes"]],
            optimizer=question["optimizer"],
            master_copy=question["master_copy"],
            gradient_buffer=bool(question["buffer_bytes"]),
        )
        layout = Layout(dp=question["dp"], zero_stage=question["zero_stage"])
        bill = model_states(question["parameters"], recipe, layout)
        if question["only_optimizer"]:
            return bill.master_copy_bytes + bill.optimizer_state_bytes
        return bill.model_states_bytes

    def activations(self, question: Question) -> float:
        names = ("attention", "dropout", "recompute")
        recipe = Recipe(
            **{name: question[name] for name in names},
            fused_norms="hugging_face" not in question,
            repeat_kv="hugging_face" in question,
        )
        layout = Layout(
            tp=question["tp"],
            pp=question["pp"],
            accumulation=question["micro_batches"],
            micro_batch=question["micro_batch"],
            sequence_parallel=question["sequence_parallel"],
        )
        shape = shape_of(question)
        return gpu_memory(
            Job(shape, recipe, layout, sequence=question["sequence"])
        ).activations_bytes

    def step(self, question: Question) -> float:
        # theory_cases has added its folder.
        from test_published_numbers import llama_job, megatron_job

        job = llama_job if "seq" in question["inputs"] else megatron_job
        return step_time(job(question["inputs"])).total_s


class Short:
    """What is written on the back of an envelope, and in many a blog."""

    def parameters(self, question: Question) -> float:
        """12·l·h² and one embedding, taken to be tied."""
        shape = shape_of(question)
        return 12 * shape.layers * shape.hidden**2 + shape.vocab * shape.hidden

    def flop(self, question: Question) -> float:
        """6·N·D, or 8·N·D with full recomputation; no attention scores."""
        active = shape_of(question).parameters().active
        tokens = question["sequences"] * question["sequence"]
        return six_nd(active, tokens, "full" if question["recompute"] == "full" else "none")

    def states(self, question: Question) -> float:
        raise CannotError("no usual short formula")

    def activations(self, question: Question) -> float:
        """l·s·b·h·(34 + 5·a·s/h)/t: tensor parallelism is taken to divide everything."""
        shape, sequence = shape_of(question), question["sequence"]
        scores = 5 * shape.heads * sequence / shape.hidden
        scores = 0 if question["recompute"] == "selective" else scores
        scores = 0 if question["attention"] == "flash" else scores
        each = 2 if question["recompute"] == "full" else 34 + scores
        tokens = question["micro_batch"] * sequence
        return shape.layers * tokens * shape.hidden * each / question["tp"]

    def step(self, question: Question) -> float:
        """6·N·D or 8·N·D at half the peak: no bubble, no messages."""
        inputs, sequence = question["inputs"], question["sequence"]
        flop = self.flop({**question, **inputs, "sequences": inputs["batch"], "sequence": sequence})
        return flop / (inputs["gpus"] * PEAK[question["gpu"]] * UTILISATION)
