"""Answers to chapter 17 that a check must refuse: (exercise, what was thought, answer)."""

from course_lib.chapters.ch17_capstone import exercises as ch17
from course_lib.chapters.ch17_capstone.audits import Audit
from course_lib.theory.inputs import hardware


def _waits(sums=2, share=True, per_sequence=True, add_up=False):
    def waits_for(weights, layers, hidden, tp, sequences, card):
        gpu = hardware.accelerator(card)
        count = sums * layers
        message = 2 * hidden * (sequences if per_sequence else 1)
        part = tp if share else 1
        sent = 2 * (tp - 1) / tp * message
        times = {
            "memory": 2 * weights / part / gpu.memory_bytes_per_s,
            "computing": 2 * weights * sequences / part / gpu.peak_flop_per_s,
            "bytes": count * sent / gpu.inside.bytes_per_s,
            "latency": count * 2 * (tp - 1) * gpu.inside.latency_s,
        }
        longest = max(times, key=times.get)
        return longest, sum(times.values()) if add_up else times[longest]

    return waits_for


_OWN = {
    "source": "arXiv:2407.21783",
    "parameters": 8.03e9,
    "tokens": 15e12,
    "gpu_hours": 1.46e6,
    "peak_flop_per_s": 989.4e12,
    "utilisation": 6 * 8.03e9 * 15e12 / (1.46e6 * 3600 * 989.4e12),
    "verdict": "poor",
}
_BLOOM = {
    "parameters": 176.2e9,
    "tokens": 366e9,
    "gpu_hours": 1.083e6,
    "peak_flop_per_s": 312e12,
    "utilisation": 0.318,
    "verdict": "plausible",
}
_LINES = {line: right for line, (right, _) in ch17._LINES.items()}


def _right(audit: Audit) -> dict[str, object]:
    return {
        "found": audit.found,
        "verdict": audit.verdict,
        "because": next(name for name, said in audit.causes.items() if not said),
        "source": next(name for name, said in audit.sources.items() if not said),
    }


_AUDITS = {
    "17.4": ch17._update_in_48_s(),
    "17.5": ch17._twice_the_batch(),
    "17.6": ch17._give_way(),
    "17.7": ch17._bloom(),
}


def _wrong_audits():
    """Each known wrong number, each other verdict, each wrong cause and source."""
    for key, audit in _AUDITS.items():
        right = _right(audit)
        for number, said in audit.mistakes.items():
            yield key, said, right | {"found": number}
        for verdict in {"holds", "does not hold", "holds only if"} - {audit.verdict}:
            yield key, verdict, right | {"verdict": verdict}
        for part in ("because", "source"):
            for name, said in getattr(
                audit, {"because": "causes", "source": "sources"}[part]
            ).items():
                if said:
                    yield key, name, right | {part: name}


_DAYS = [47.147, 1.27260, 201.16, 700.26, 6465.5]
_BOUGHT, _CHEAPER = (
    {training: ch17._larger_memory(training)[0] for training in ch17._TRAININGS},
    {training: ch17._larger_memory(training)[1] > 1.25 for training in ch17._TRAININGS},
)
_FITS_FIRST = next(iter(_BOUGHT))
_DOUBLES = {change: word for change, (word, _) in ch17._changes().items()}
_TP, _PP, _DP = ch17._built()
MISTAKES = [
    ("17.2", "every card reads all weights", _waits(share=False)),
    ("17.2", "one all-reduce a layer", _waits(sums=1)),
    ("17.2", "messages as for one sequence", _waits(per_sequence=False)),
    ("17.2", "adds all four", _waits(add_up=True)),
    ("17.3", "all false", dict.fromkeys(_LINES, False)),
    ("17.3", "all true", dict.fromkeys(_LINES, True)),
    *_wrong_audits(),
    ("17.8", "divides by 1.2142", [60 / 1.2142, *_DAYS[1:]]),
    ("17.8", "the published best row", [60 * 7.17 / 9.76, 9.76 / 7.17, 188, 565, _DAYS[4]]),
    ("17.8", "150 and what is left of them", [*_DAYS[:3], 150 * 0.2142, *_DAYS[4:]]),
    ("17.9", "always fewer cuts", [dict.fromkeys(_BOUGHT, "fewer cuts"), _CHEAPER]),
    (
        "17.9",
        "larger memory, larger batches",
        [dict.fromkeys(_BOUGHT, "larger micro-batches"), _CHEAPER],
    ),
    ("17.9", "never cheaper", [_BOUGHT, dict.fromkeys(_CHEAPER, False)]),
    ("17.9", "always cheaper", [_BOUGHT, dict.fromkeys(_CHEAPER, True)]),
    ("17.9", "one of the lists", [_BOUGHT, {_FITS_FIRST: True}]),
    ("17.10", "forgets the embedding", [_TP * 8 // 9, _PP, _DP, _DOUBLES]),
    ("17.10", "bf16", [_TP // 2, _PP // 2, _DP // 2, _DOUBLES]),
    ("17.10", "gradients of each piece", [_TP, _PP, 2 * _DP, _DOUBLES]),
    ("17.10", "more samples, more gradients", [_TP, _PP, _DP, dict.fromkeys(_DOUBLES, "both")]),
    ("17.10", "as many messages, as many bytes", [_TP, _PP, _DP, dict.fromkeys(_DOUBLES, "tp")]),
    ("17.13", "judges by feeling", _OWN | {"verdict": "plausible"}),
    ("17.13", "the sparse peak", _OWN | {"peak_flop_per_s": 1979e12}),
    ("17.13", "only the forward pass", _OWN | {"utilisation": _OWN["utilisation"] / 3}),
    ("17.13", "in percent", _OWN | {"utilisation": 100 * _OWN["utilisation"]}),
    ("17.13", "hearsay", _OWN | {"source": "a talk"}),
    ("17.13", "the chapter's own run", _OWN | _BLOOM),
]
OTHER_FORMS = [
    ("17.13", "another run, rounded", _OWN | {"utilisation": 0.139}),
    ("17.13", "a web page", _OWN | {"source": "github.com/meta-llama/llama-models"}),
    ("17.4", "text with its unit", _right(_AUDITS["17.4"]) | {"found": "283 TFLOP/s"}),
    ("17.5", "two digits", _right(_AUDITS["17.5"]) | {"found": 1.07}),
    (
        "17.7",
        "the log of the training",
        _right(_AUDITS["17.7"])
        | {"source": "github.com/bigscience-workshop/bigscience, tr11-176B-ml"},
    ),
    ("17.8", "whole GPUs", [47.1, 1.273, 201, 700, 6466]),
    ("17.10", "texts", ["147456 B", 16384, 221952.0, _DOUBLES]),
]
