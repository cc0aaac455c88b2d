"""The chapters in order, and the prerequisites of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One chapter: `needs` are the chapters that its text names as prerequisites."""

    number: int
    title: str
    needs: tuple[int, ...] = ()


CHAPTERS = (
    Entry(0, "Start here"),
    Entry(1, "Steps and batches"),
    Entry(2, "Gradient accumulation", needs=(1,)),
    Entry(3, "What is in the memory", needs=(1,)),
    Entry(4, "Activations and recomputation", needs=(3,)),
    Entry(5, "FLOPs, roofline, MFU", needs=(3,)),
    Entry(6, "Collectives and the α–β model", needs=(5,)),
    Entry(7, "From DP to DDP", needs=(2, 6)),
    Entry(8, "ZeRO 1, 2, 3", needs=(3, 6, 7)),
    Entry(9, "FSDP and YaFSDP", needs=(3, 6, 8)),
    Entry(10, "Tensor parallelism", needs=(4, 5, 6)),
    Entry(11, "Pipeline parallelism", needs=(2, 4, 6)),
    Entry(12, "Experts and long sequences", needs=(6, 10)),
    Entry(13, "3D parallelism and planning", needs=(*range(3, 12), 12)),
    Entry(14, "Parameter servers and RPC", needs=(6, 7, 11)),
    Entry(15, "Launchers, frameworks, recovery", needs=(7, 9)),
    Entry(16, "The cluster clinic", needs=(6, 9, 15)),
    Entry(17, "Capstone", needs=(5, 9, 11, 13)),
)


TITLES = {entry.number: entry.title for entry in CHAPTERS}


def steps(chapters: tuple[Entry, ...] = CHAPTERS) -> list[tuple[int, int]]:
    """(prerequisite, chapter) pairs, without those implied by others (transitive reduction).

    Chapter 8 needs 3, 6 and 7. Chapter 7 needs 6, and through it 3, so only (7, 8) remains.
    A chapter without prerequisites follows chapter 0.
    """
    needs = {entry.number: entry.needs or (0,) * (entry.number > 0) for entry in chapters}
    before: dict[int, set[int]] = {}  # by chapter: all chapters to be read before it
    for number in sorted(needs):
        before[number] = set(needs[number]).union(*(before[need] for need in needs[number]))
    return [
        (need, number)
        for number, own in needs.items()
        for need in own
        if not any(need in before[other] for other in own)
    ]
