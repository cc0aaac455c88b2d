"""Audit B: the published table, and the one that chapter 9 finds."""

from probes import Probe, by_name

from course_lib.theory.audits.gpt2_128 import CARD_BYTES, Program, gpt2_128
from course_lib.theory.inputs.models import MODELS

LARGE, XL = MODELS["gpt2-774m"], MODELS["gpt2-1.5b"]


def test_the_table_of_section_9_5():
    assert list(Program(LARGE).table().values()) == [8, 15, 17, 23]
    assert [Program(XL).largest_batch(way) for way in ("DDP", "FULL_SHARD", "offload")] == [
        0,
        6,
        14,
    ]


def test_twelve_tokens_were_not_what_ran():
    assert Program(LARGE, 12, written_out=False).largest_batch("DDP") == 197
    audit = gpt2_128()
    verdicts = [claim.verdict for claim in audit.claims]
    assert verdicts.count("right number, other terms") == 5
    assert [claim.verdict for claim in audit.claims if "XL under DDP" in claim.words] == ["right"]


def test_a_sample_more_does_not_fit():
    program = Program(LARGE)
    fits = program.largest_batch("FULL_SHARD")
    smaller = Program(LARGE, card_bytes=CARD_BYTES * (1 - 1e-4))
    assert smaller.largest_batch("FULL_SHARD") in (fits - 1, fits)


REFUSED = [(lambda: Program(LARGE, 2048), "sequence")]
PROBES = by_name(
    Probe(Program(LARGE).largest_batch, {"way": "DDP"}),
)
