"""The leaves of a bill, grouped as people speak of them."""

from dataclasses import replace

from probes import FULL, JOB, PLAIN, ZERO_3, Probe, by_name

from course_lib.theory.inputs import units
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.memory.peak import gpu_memory, training_memory


def test_consumers_sum_to_the_total():
    bill = training_memory(MODELS["llama2-7b"], RECIPES["accumulate-20"], micro_batch=3)
    assert len(bill.consumers) == 7
    assert sum(bill.consumers.values()) == bill.total_bytes
    assert f"{units.gb(bill.total_bytes):.2f} GB" in bill.explain("GB")
    assert f"{units.gib(bill.total_bytes):.2f} GiB" in bill.explain("GiB")


BATCHES_OF_TWO = replace(ZERO_3, zero_stage=2, micro_batch=2)
BILLS = [
    gpu_memory(replace(JOB, recipe=PLAIN)),
    gpu_memory(replace(JOB, recipe=Recipe(gradient_buffer=True), layout=ZERO_3), overhead_bytes=1),
    gpu_memory(
        replace(JOB, recipe=replace(FULL, dropout=True), layout=BATCHES_OF_TWO), overhead_bytes=2
    ),
    gpu_memory(replace(JOB, recipe=Recipe(update="foreach"), layout=Layout())),
]
PROBES = by_name(
    Probe(BILLS[0].explain, {}, {"unit": "GiB"}),
)
RECORDS = {"MemoryBreakdown": BILLS}
