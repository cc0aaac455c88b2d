"""No published case is lost: the 126 that the course promised are here, once, and are run."""

import importlib
import json
from collections import Counter
from pathlib import Path

from every import every

HERE = Path(__file__).parent
CASES = {
    file.name: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted(HERE.glob("published/*.json"))
}
IDS = [case["id"] for cases in CASES.values() for case in cases]

PROMISED = [
    "act.175b.full",
    "act.175b.none",
    "act.175b.tp",
    "act.175b.tp+sel",
    "act.175b.tp+sp",
    "act.175b.tp+sp+sel",
    "act.1t.full",
    "act.22b.none",
    "act.22b.tp",
    "act.22b.tp+sp",
    "act.530b.tp+sp",
    "act.ckpt.llama2-70b.8192tok",
    "act.inflight.megatron.pp",
    "act.logits.llama3-8b.32k",
    "act.measured.llama3.1-8b.copies",
    "act.seed.llama2-70b.730gb",
    "act.selective.flops.gpt3",
    "act.selective.saving.gpt3",
    "batch.global.pure-dp",
    "batch.global.tp-pp",
    "batch.llama2.sequences",
    "batch.seed.16384x4096",
    "batch.seed.microsteps",
    "batch.seed.updates",
    "bubble.1f1b.time.p16",
    "bubble.1f1b.time.p8",
    "bubble.dualpipe.time.p8",
    "bubble.fraction.p80.m80",
    "bubble.p16.m64.v1",
    "bubble.p4.m8.v1",
    "bubble.p8.m32.v1",
    "bubble.p8.m32.v2",
    "bubble.p80.m80.v1",
    "bubble.zb1p.time.p16",
    "bubble.zb1p.time.p8",
    "comm.allgather.8",
    "comm.pp.gpt3",
    "comm.ring-allreduce.64",
    "comm.ring-allreduce.8",
    "comm.seed.pcie-4gb",
    "comm.tp.gpt3",
    "comm.zero3-vs-ddp",
    "cost.deepseek-v3",
    "critical-batch.at-bcrit",
    "flops.6nd.chinchilla",
    "flops.6nd.gpt3-175b",
    "flops.6nd.gpt3-small",
    "flops.6nd.gpt3-xl",
    "flops.gpt2-124m.s1024",
    "flops.llama2-7b.s4096",
    "flops.megatron.gpt3.iter",
    "flops.palm.gpt2-124m",
    "flops.recompute.factor",
    "flops.seed.70b-layer.step",
    "hfu.korthikanti-175b",
    "hours.llama65b",
    "hw.4090.peak.fp32acc",
    "hw.a100.peak",
    "hw.h100.peak",
    "inflight.1f1b.p8.m32.s0",
    "inflight.1f1b.p80.m80.s0",
    "inflight.gpipe.p8.m32.s0",
    "lr.linear-scaling",
    "mfu.korthikanti-175b",
    "mfu.llama3-405b.16384-cp16",
    "mfu.llama3-405b.8192",
    "mfu.nanogpt",
    "mfu.palm-540b",
    "mfu.palm-540b.noattn",
    "mfu.torchtitan-8b.nocompile",
    "params.gpt2-124m",
    "params.gpt2-large",
    "params.gpt2-xl",
    "params.gpt3-175b",
    "params.llama2-70b",
    "params.llama2-7b",
    "params.mixtral-8x7b.total",
    "params.narayanan-145.6b",
    "params.narayanan-39.1b",
    "params.narayanan-7.5b",
    "plan.seed.gpus-24gb",
    "plan.seed.gpus-80gb",
    "plan.zero3.min-n.7.5b",
    "roofline.ai.square4096",
    "roofline.ridge.a100-80",
    "roofline.ridge.h100",
    "roofline.ridge.tpu-v5p",
    "roofline.seed.bandwidth",
    "roofline.seed.flop-per-byte",
    "roofline.seed.tp-4090",
    "roofline.seed.tp-h100.corrected",
    "roofline.tp-layer.4090",
    "roofline.tp-layer.h100",
    "states.ddp-fp32.gpt2-xl",
    "states.megatron-distopt.gpt3.dp8",
    "states.optimizer.adamw-8bit",
    "states.optimizer.adamw-fp32",
    "states.optimizer.adamw-mixed",
    "states.optimizer.sgd-momentum",
    "states.optimizer.sgd-plain",
    "states.optimizer.sgd-plain.13b",
    "states.playbook.7b.extra0",
    "states.playbook.7b.extra4",
    "states.seed.llama2-70b.optimizer",
    "states.seed.llama2-70b.params",
    "states.seed.llama2-70b.total",
    "states.zero0.7.5b.n1",
    "states.zero1.1000b.n256",
    "states.zero1.7.5b.n4",
    "states.zero1.7.5b.n64",
    "states.zero2.128b.n16",
    "states.zero2.7.5b.n4",
    "states.zero2.7.5b.n64",
    "states.zero3.1000b.n1024",
    "states.zero3.7.5b.n64",
    "tflops.llama2-70b.hours",
    "tflops.mtnlg.2240",
    "time.gpt3.1024",
    "time.llama65b",
    "time.nanogpt-300b",
    "time.narayanan-t2.174.6b.384.144",
    "time.narayanan-t2.174.6b.384.153",
    "yafsdp.llama2-70b.256.2048",
    "yafsdp.llama2-7b.64.2048",
    "yafsdp.llama3-70b.256.2048",
    "yafsdp.throughput",
]


def run_ids():
    """Ids of the cases that the tests `every("case", CASES)` of test_published_*.py get."""
    found = Counter()
    for file in sorted(HERE.glob("test_published_*.py")):
        if file.stem == Path(__file__).stem:
            continue
        for name, function in vars(importlib.import_module(file.stem)).items():
            if name.startswith("test_"):
                found.update(case["id"] for case in getattr(function, "cases", ()))
    return found


def test_all_126_promised_cases_are_here():
    assert len(PROMISED) == len(set(PROMISED)) == 126
    assert not set(PROMISED) - set(IDS)


def test_no_case_is_here_twice():
    assert [name for name, count in Counter(IDS).items() if count > 1] == []


def test_every_case_is_run_by_one_test():
    assert run_ids() == Counter(IDS)


@every("name", CASES)
def test_cases_say_what_they_are_and_where_they_come_from(name):
    needed = {"id", "quantity", "inputs", "expected", "tolerance", "tolerance_kind", "unit"}
    for case in CASES[name]:
        assert needed | {"source", "category"} <= set(case), case["id"]
        assert len(case["source"]) > 5 and case["quantity"], case["id"]
        assert case["tolerance_kind"] in {"rel", "abs"} and case["tolerance"] >= 0, case["id"]
        assert isinstance(case["inputs"], dict) and case["inputs"], case["id"]
