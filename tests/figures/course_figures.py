"""Batches, speed and price, the course itself: extremes included, and what is refused."""

from collections.abc import Callable

from course_lib import figures, outline
from course_lib.figures.paper.drawing import Drawing
from course_lib.mine.parts import PARTS
from course_lib.theory.audits import whole_run
from course_lib.theory.audits.claim import Audit, Claim
from course_lib.theory.audits.gpt2_128 import gpt2_128
from course_lib.theory.audits.plan_2048 import plan_2048
from course_lib.theory.audits.whole_run import LoggedStep, Run, RunAudit
from course_lib.theory.compute.products import linear_products
from course_lib.theory.compute.roofline import model_roofline
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.step.batching import Batching, batch_cost
from course_lib.theory.step.give_way import sharded_backward
from course_lib.theory.step.streams import Task, shared_timeline

WORK = Task("work", "computing", 0.1, {"processor": 1.0})

SMALL_WORK = Task("prepare", "messages", 0.01, {"processor": 1.0}, weight=0.05)

GIVEN_WAY = shared_timeline(sharded_backward(6, WORK, WORK, WORK, prepare=SMALL_WORK))

ONE_TASK = shared_timeline([Task("work", "computing", 1e-6)])

PAID = RunAudit(whole_run.BLOOM, whole_run.BLOOM_STEP)
USED_UP = RunAudit(Run("a run", 1e9, 1e9, 1667, 1e12), LoggedStep(6000, 10**6, 1, 6e15))
LOST = RunAudit(Run("a run", 1e9, 1e9, 170_000, 1e12), LoggedStep(61_000, 10**6, 1, 6.1e15))

TITLE = "llama3-405b, accumulate-20, adamw-8bit: 14 bytes per parameter"

FILES = [f"part {number}" for number in range(14)] + ["ring", "mesh"]


def _parts(yours: set[str], measured: bool) -> list[dict[str, object]]:
    """A report on parts, as `checking.races` makes it."""
    rows: list[dict[str, object]] = []
    for place, name in enumerate(FILES):
        own = name in yours
        row = {"build": f"{place}.11", "title": f"{name} of a library", "lines_of_the_course": 33}
        row |= {"file": f"mine/{name}.py" if own else None, "lines": 9 + 7 * place if own else None}
        rows.append(row | ({"times_the_course": 1.25} if own and measured else {}))
    return rows


def window(micro_batch: int, accumulation: int, dp: int, no_sync: bool) -> Drawing:
    plan = Batching(10**6, micro_batch, accumulation, gpus_per_node=dp)
    return figures.window(plan, {False: accumulation, True: 1}, no_sync)


def cost(critical_batch: float, batch: float) -> Drawing:
    return figures.batch_cost(batch_cost(batch, critical_batch), critical_batch, batch)


SPLIT = Batching(10**5, 4, 8, 8, 8, tp=8, pp=4)


COURSE: dict[str, Callable[[], figures.Drawing]] = {
    "built, none": lambda: figures.built(_parts(set(), measured=False)),
    "built, some": lambda: figures.built(_parts({"ring", "mesh"}, measured=True)),
    "built, all": lambda: figures.built(_parts(set(FILES), measured=True)),
    "one rank": lambda: figures.one_batch(Batching(1000, 5, 2)),
    "64 ranks": lambda: figures.one_batch(Batching(10_000, 64, 64, 64, 8)),
    "one sample": lambda: figures.one_batch(Batching(1, 1, 1)),
    "repeated": lambda: figures.one_batch(Batching(1003, 4, 3, 1, 4)),
    "dropped": lambda: figures.one_batch(Batching(1003, 4, 3, 1, 4, drop_last=True)),
    "map": lambda: figures.course_map(outline.CHAPTERS, outline.steps(), PARTS),
    "map of one chapter": lambda: figures.course_map(outline.CHAPTERS[:2], [], []),
    "samples": lambda: figures.samples_by_rank([[[0, 2, 4, 0], [1, 3, 5, 1]]] * 3),
    "many samples": lambda: figures.samples_by_rank([[list(range(900, 1000))] * 20]),
    "window": lambda: window(4, 4, 2, True),
    "long window": lambda: window(64, 64, 64, False),
    "one micro-step": lambda: window(1, 1, 1, True),
    "cost": lambda: cost(1024, 64),
    "cost, far right": lambda: cost(4096, 8),
    "cost, far up": lambda: cost(64, 16384),
    "cost, beyond the frame": lambda: cost(1, 10**6),
    "roofline": lambda: figures.on_roofline(
        model_roofline(MODELS["gpt2-124m"], accelerator("RTX4090"), 1)
    ),
    "roofline, in the middle": lambda: figures.on_roofline(
        model_roofline(MODELS["llama2-7b"], accelerator("H100-SXM"), 64)
    ),
    "roofline, far right": lambda: figures.on_roofline(
        model_roofline(MODELS["gpt3-175b"], accelerator("MI300X"), 65536), TITLE
    ),
    "shared rates": lambda: figures.shared_rates({"give way": GIVEN_WAY, "one": ONE_TASK}),
    "shared rates, one": lambda: figures.shared_rates({"alone": ONE_TASK}),
    "token costs": lambda: figures.token_costs(
        {"H100-SXM": {"training": 0.6, "generating": 2}, "A100-SXM-80GB": {"training": 1234.5}}
    ),
    "token costs, free": lambda: figures.token_costs({"ours": {"training": 0.0}}, "a title"),
    "guesses": lambda: figures.guesses(
        {"memory": [1.0, 0.1, 0.5, 0.5, 3.0], "time": [0.0001, 7e9], "counts": [1.0] * 40}
    ),
    "guesses, one": lambda: figures.guesses({"messages": [1.005]}),
    "tries": lambda: figures.tried_batches([1, 2, 4, 3], 3),
    "tries, long": lambda: figures.tried_batches([1, 2048, 1024, 1500], 1499),
    "audited": lambda: figures.audited(plan_2048(), TITLE),
    "audited, a 0 is said": lambda: figures.audited(gpt2_128(), TITLE),
    "audited, near": lambda: figures.audited(whole_run.bloom(), TITLE),
    "audited, nothing is left": lambda: figures.audited(
        Audit("a source", (Claim("much", 5e8, 4e11, 0, "none is found", "tokens"),)), TITLE
    ),
    "products": lambda: figures.matrix_products(linear_products(2, 3, 4)),
    "products, large": lambda: figures.matrix_products(linear_products(4, 4, 4)),
    "products, small": lambda: figures.matrix_products(linear_products(1, 1, 1)[:1]),
    "number ranges": lambda: figures.number_ranges(
        {"bf16": (9.2e-41, 1.2e-38, 3.4e38), "fp16": (6e-8, 6.1e-5, 65504.0)},
        "Where a gradient lies",
        {"a gradient": 1.5e-5, "a sum": 2e30},
    ),
    "number ranges, one": lambda: figures.number_ranges({"whole": (1.0, 1.0, 2.0)}, "One format"),
    "paid time": lambda: figures.paid_time(PAID),
    "paid time, all of it": lambda: figures.paid_time(USED_UP),
    "paid time, little of it": lambda: figures.paid_time(LOST),
    "ladder": lambda: figures.batch_ladder(Batching(1000, 5, 2, 2, 4)),
    "ladder, one sample": lambda: figures.batch_ladder(Batching(1, 1, 1)),
    "ladder, large": lambda: figures.batch_ladder(Batching(10**9, 256, 256, 128, 8)),
}
BAD_COURSE: list[Callable[[], object]] = [
    lambda: figures.tried_batches([], 1),
    lambda: figures.number_ranges({}, "t"),
    lambda: figures.number_ranges({"falling": (1.0, 0.5, 2.0)}, "t"),
    lambda: figures.number_ranges({"fine": (1.0, 1.0, 2.0)}, "t", {"zero": 0.0}),
    lambda: figures.course_map([outline.Entry(99, "Further")], [], []),
]
