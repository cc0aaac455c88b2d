"""One sentence for each kind of fault, from real records; and no healthy rank accused."""

from dataclasses import replace

import pytest
from pages import RECORDS, TORCH, call, evidence, line, sleeping, waiting, written

from course_lib.chapters.ch16_cluster_clinic.diagnosing.judging import diagnose
from course_lib.chapters.ch16_cluster_clinic.diagnosing.reading import read
from course_lib.chapters.ch16_cluster_clinic.diagnosing.standing import End, Evidence, Record
from course_lib.demos.faults.kinds import KINDS
from course_lib.launch.page import Line, Page, Stack

# Of each kind: the cause, the accused of the three ranks, and the text of a line that is named.
CAUSES = {
    "none": ("nothing", (), ""),
    "kill": ("killed", (1,), ""),
    "error": ("error", (1,), "print(update.ones @ torch.ones(5))"),
    "memory": ("memory", (1,), "update.ones.new_empty(HUGE)"),
    "port": ("port", (1,), "dist.TCPStore("),
    "short": ("finished early", (1,), "dist.all_reduce(update.ones)"),
    "hang": ("stuck", (1,), "time.sleep(1)"),
    "pattern": ("stuck", (1,), ""),  # the page stood still: faulthandler has numbers only
    "slow": ("straggler", (1,), "time.sleep(0.2)"),
    "loader": ("loader", (1,), "for _batch in DataLoader(Samples(lambda: time.sleep(600))"),
    "worker": ("loader", (1,), "for _batch in DataLoader(Samples(lambda: os.kill("),
    "shm": ("shared memory", (1,), "for _batch in DataLoader(samples"),
    "collective": ("collective", (1,), "dist.broadcast(update.ones, 0)"),
    "shape": ("size", (1,), "dist.all_reduce(update.ones.repeat(1000))"),
    "dtype": ("size", (1,), "dist.all_reduce(update.ones.double())"),
    "order": ("order", (1,), "gathered(update)"),
    "extra": ("extra", (1,), "dist.barrier()"),
    "twice": ("extra", (1,), "dist.all_reduce(torch.zeros(4))"),
    "subgroup": ("subgroup", (1,), "dist.all_reduce(update.ones, group=update.group)"),
    "interface": ("interface", (1,), "dist.new_group("),
    "link": ("nothing", (), ""),  # all ranks finish, and no record holds times of messages
    "weights": ("nothing", (), ""),
    "cycle": ("circle", (), "dist.recv("),
    "unused": ("error", (0, 1, 2), "model(update.ones).sum().backward()"),
}


def test_every_kind_was_recorded():
    assert set(CAUSES) == set(KINDS) == set(RECORDS)


@pytest.mark.parametrize("kind", CAUSES)
def test_a_record_is_understood(kind, tmp_path):
    cause, ranks, text = CAUSES[kind]
    diagnosis = diagnose(read(written(kind, tmp_path)))
    found = diagnosis.finding
    assert (found.cause, found.ranks, diagnosis.notes) == (cause, ranks, ())
    named = [each.text for rank, each in found.lines.items() if rank in (ranks or found.lines)]
    assert not text or any(text in each for each in [*named, found.sentence]), named
    assert found.sentence.count(". ") == 0 and not found.sentence.endswith(".")
    assert len(diagnosis.ranks) == 3
    if ranks == (1,):
        assert found.sentence.startswith("Rank 1 is the cause: it ")


def test_the_report_of_a_hang(tmp_path):
    report = diagnose(read(written("hang", tmp_path))).report()
    first, _, rest = report.partition("\n\n")
    assert first.startswith("Rank 1 is the cause: it stayed at kinds.py:")
    assert "(`time.sleep(1)`) for " in first
    assert "s, while ranks 0 and 2 waited in all_reduce number 3 at kinds.py:" in first
    assert first.endswith("Look at what keeps rank 1 there, before the collective.")
    assert rest.splitlines()[1].startswith("  rank 1 is in its own code at kinds.py:")


STEP = [call(1, 10), call(2, 11, "all_gather")]
USUAL = waiting(*STEP, call(3, 10))
ODD = waiting(*STEP, call(3, 20, "broadcast"))
DONE = Page(0, 3, state="returned", calls=tuple(STEP))
LATE = "RuntimeError: rank 0 of 3 waited 2 s for the others"
EARLY = [Page(0, 3, state="failed", error=LATE), Page(1, 3, state="joining", still_s=2.0)]
SAID = "op.preamble.length <= op.nbytes. Received data size doesn't match expected size."
WATCHDOG = {"end": End(-6, reason="was killed by SIGABRT"), "log": "Watchdog caught a timeout"}


def aborted(rank, at, function="", **more):
    """A rank whose process was aborted at a line of its own, inside that function of torch."""
    inside = (Line(TORCH, 1, function),) if function else ()
    known = {"page": Page(rank, 3), "crash": (line(at), *inside), "fatal": "Aborted"}
    return Record(rank, **known | more)


def ranks_of(*pages):
    """Pages as ranks from 0 on; a Record stays as it is."""
    records = evidence(*(None if isinstance(each, Record) else each for each in pages)).records
    return Evidence(
        tuple(p if isinstance(p, Record) else r for p, r in zip(pages, records, strict=True))
    )


def judged(*pages):
    return diagnose(ranks_of(*pages)).finding


def broadcasts(*roots):
    return [waiting(*STEP, replace(call(3, 10, "broadcast"), root=root)) for root in roots]


def returned_after(operation):
    """Three ranks that have called it for 4, 4 and 5 elements."""
    calls = [call(1, 10, operation, sizes=((size,),)) for size in (4, 4, 5)]
    return [Page(0, 3, state="returned", calls=(each,)) for each in calls]


# What is known of the ranks: the cause, the accused, and words of the sentence or the remedy.
CASES = {
    "of two ranks that call different things neither is accused": (
        [USUAL, ODD], "collective", (),
        "Ranks 0 and 1 disagree, and nothing shows which is wrong: rank 0 called all_reduce at"
        " train.py:10 (in step) while rank 1 called broadcast at train.py:20 (in step)",
    ),
    "nor of two and two": ([ODD, ODD, USUAL, USUAL], "collective", (), "Ranks 0, 1, 2 and 3 disag"),
    "the larger part is believed": ([USUAL, USUAL, USUAL, ODD], "collective", (3,), "Rank 3 is"),
    "gathering different sizes is no fault": (returned_after("all_gather"), "nothing", (), ""),
    "reducing them is": (returned_after("all_reduce"), "size", (2,), "all_reduce of 5 float"),
    "a chain of groups ends at the rank that waits for nobody": (
        [
            waiting(call(1, 10, group="a"), groups={"a": (0, 1), "b": (1, 2)}),
            waiting(call(1, 11, group="b"), groups={"a": (0, 1), "b": (1, 2)}),
            sleeping(groups={"a": (0, 1), "b": (1, 2)}),
        ],
        "stuck", (2,), "at train.py:99",
    ),
    "who waits for a receive that no record shows is not accused": (
        [
            USUAL,
            sleeping(
                *STEP,
                stack=(
                    line(99, "work.wait()"),
                    Line("/home/me/course_lib/launch/flight.py", 120, "wait"),
                ),
            ),
            USUAL,
        ],
        "unknown", (), "",
    ),
    "another root": (broadcasts(0, 1, 0), "root", (1,), "broadcast with root 1 at"),
    "roots that are not known": (
        broadcasts(-1, -1, -1), "unknown", (), "all ranks are in broadcast number 3",
    ),
    "another operator": (
        [waiting(*STEP, call(3, 10, root=0, operator=each)) for each in ("", "MAX", "")],
        "root", (1,), "all_reduce of MAX at train.py:10 (in step) while ranks 0 and 2 called",
    ),
    "who has left by os._exit": (
        [
            USUAL,
            Page(1, 3, state="returned", reason="called os._exit(0)", stack=(line(50),)),
            USUAL,
        ],
        "finished early", (1,), "it finished (called os._exit(0) at train.py:50",
    ),
    "a barrier that no record shows is not the call before it": (
        [
            late := Page(
                0, 3, state="failed", calls=tuple(STEP), groups={"0": ()},
                error="RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms",
                stack=(line(12), Line(TORCH, 5435, "monitored_barrier")),
            ),
            sleeping(*STEP),
            late,
        ],
        "stuck", (1,), "at train.py:99",
    ),
    "an aborted rank belongs to neither side where both called at its line": (
        [
            aborted(0, 10, "all_reduce"),
            *(waiting(*STEP, call(3, 10, dtypes=(kind,))) for kind in ("Float", "Double")),
        ],
        "size", (), "Ranks 1 and 2 disagree",
    ),
    "no root of an aborted rank is known": (
        [aborted(0, 12, "all_reduce"), waiting(*STEP, call(3, 10, root=0))], "size", (), "",
    ),
    # A rank that sends more than the others receive is done, and dies in the next call.
    "an aborted rank stays in the call from its line when another went on": (
        [aborted(0, 12, "alltoall"), waiting(*STEP, call(3, 12, "alltoall"), call(4, 10))],
        "size", (), "Rank 0 received another number of bytes than expected at train.py",
    ),
    "an aborted rank is in the group in which others called at its line": (
        [
            aborted(0, 60, "all_gather", page=Page(0, 3, state="joining")),
            replace(USUAL, groups={"0": (0, 1, 2), "1": (0, 2)}),
            Page(
                2, 3, calls=(*STEP, call(1, 60, "all_gather", group="1")),
                groups={"0": (0, 1, 2), "1": (0, 2)}, still_s=3.0,
            ),
        ],
        "size", (), "Rank 0 received another number of bytes than expected at train.py",
    ),
    # An asynchronous call of another size: gloo aborts those who receive too much.
    "aborted ranks whose calls are not known": (
        [*(aborted(r, 7, end=End(-6), log=SAID) for r in (0, 1)), waiting(*STEP, call(3, 7))],
        "size", (),
        "Ranks 0 and 1 received another number of bytes than expected at train.py:7 (in step), and"
        " nothing shows whose call is wrong",
    ),
    "who was aborted by a thread of gloo is not accused without a log": (
        [*(aborted(r, 7, outside=True) for r in (0, 1)), waiting(*STEP, call(3, 7))],
        "size", (), "",
    ),
    "who was aborted by Python is": (
        [aborted(0, 7), *[waiting(*STEP, call(3, 7))] * 2], "killed", (0,), "a fatal error",
    ),
    "NCCL's watchdog aborts who waits": (
        [
            Record(0, USUAL, **WATCHDOG),
            sleeping(*STEP),
            Record(2, replace(USUAL, rank=2), **WATCHDOG),
        ],
        "stuck", (1,), "",
    ),
    "who has just come out of a collective is not accused": (
        [USUAL, sleeping(*STEP, still_s=0.4), USUAL], "unknown", (), "",
    ),
    "all in one call that fits": (
        [USUAL] * 3, "unknown", (), "Don't know: all ranks are in all_reduce number 3 at train.py",
    ),
    "a lost page is not a broken rank": (
        [USUAL, None, USUAL], "unknown", (), "Don't know: rank 1 left no page",
    ),
    "a rank that never came": (
        [*EARLY, None], "never came", (2,),
        "Rank 2 never came: ranks 0 and 1 of 3 waited to begin, and rank 2 left no page",
    ),
    "all are there, and none gets in": (EARLY, "unknown", (), ""),
    "it may just be slow": ([EARLY[1], EARLY[1], None], "unknown", (), ""),
    "it was started": ([*EARLY, Record(2, end=End(None))], "unknown", (), ""),
    # gloo ticks off a call a moment after it is done.
    "a call behind which another is over is over": (
        [*[sleeping(replace(STEP[0], over=False), STEP[1], still_s=5.0)] * 2, USUAL],
        "stuck", (0, 1), "",
    ),
    "one call too many at the end": (
        [DONE, DONE, waiting(*STEP, call(3, 20, "barrier"))],
        "extra", (2,), "at train.py:20 (in step), which ranks 0 and 1, who have finished, did not",
    ),
    "of two": ([DONE, waiting(*STEP, call(3, 20, "barrier"))], "finished early", (), ""),
    "ranks at one line of their own are accused together": (
        [sleeping(*STEP), sleeping(*STEP), USUAL],
        "stuck", (0, 1), "Ranks 0 and 1 are the cause: they stayed at train.py:99",
    ),
    "at two lines, the one that was there for longer": (
        [sleeping(*STEP, at=98, still_s=2.0), sleeping(*STEP), USUAL], "stuck", (1,), "",
    ),
    "another size from the same line": (
        [waiting(*STEP, call(3, 10, sizes=((1,),))), USUAL, USUAL], "size", (0,), "a last batch",
    ),
    "another size from another line": (
        [waiting(*STEP, call(3, 20, sizes=((1,),))), USUAL, USUAL], "size", (0,), "different lines",
    ),
    # DDP broadcasts buffers before a forward pass: rank 0 evaluates alone.
    "two calls too many are found where they began": (
        [
            waiting(
                *STEP, *(call(n, 77, "broadcast") for n in (3, 4)), call(5, 10, "broadcast")
            ),
            *[waiting(*STEP, *(call(n, 10, "broadcast") for n in (3, 4)), call(5, 10))] * 2,
        ],
        "extra", (0,), "at train.py:77 (in step), 2 calls more than ranks 1 and 2",
    ),
    "without a page": ([None] * 3, "unknown", (), "Record a launch"),
    "without a record": ([], "unknown", (), "Record a launch"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_known_decides(name):
    pages, cause, ranks, words = CASES[name]
    diagnosis = diagnose(ranks_of(*pages))
    found = diagnosis.finding
    assert (found.cause, found.ranks) == (cause, ranks), found.sentence
    assert words in diagnosis.report()


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_of_two_orders_the_one_of_the_rounds_before_is_right(rounds):
    past = [
        call(n, 10 if n % 2 else 11, "all_reduce" if n % 2 else "all_gather")
        for n in range(1, 2 * rounds + 1)
    ]
    usual = waiting(*past, call(2 * rounds + 1, 10))
    odd = waiting(*past, call(2 * rounds + 1, 11, "all_gather"))
    for pages in ((usual, odd), (odd, usual)):
        found = judged(*pages)
        assert (found.cause, found.ranks) == ("order", ())
        assert f"rank {pages.index(odd)} called all_gather" in found.sentence
        assert found.sentence.endswith("in the rounds before, all_reduce came first")
    assert judged(usual, odd, usual).ranks == (1,)


@pytest.mark.parametrize(
    ("hears", "behind_s", "words"),
    [
        (True, 0.1, "it died, or left by an exit that Python does not see, last seen at train"),
        (True, 9.0, "it stopped or died 9 s before the others"),
        (False, 0.1, "Don't know"),  # it may have handled the signal itself
    ],
)
def test_who_was_not_told_to_end_was_dead_already(hears, behind_s, words):
    """torchrun ends the other ranks when one has died; nothing else says that it has."""
    page = Page(1, 3, calls=tuple(STEP), hears=hears, stack=(line(40, "risky()"),))
    first, last = (
        Record(rank, replace(USUAL, rank=rank, hears=True), signalled=True) for rank in (0, 2)
    )
    found = judged(first, Record(1, page, behind_s=behind_s), last)
    assert words in found.sentence
    assert found.ranks == ((1,) if hears else ())


@pytest.mark.parametrize(("at_s", "ranks"), [(8.9, (1,)), (9.1, ())])
def test_who_was_gone_when_the_others_lost_a_peer_had_died(at_s, ranks):
    error = "RuntimeError: Connection closed by peer [127.0.0.1]:5546"
    lost = replace(USUAL, state="failed", error=error, at_s=9.0)
    gone = Page(1, 3, calls=tuple(STEP), hears=True, stack=(line(40, "risky()"),), at_s=at_s)
    assert judged(lost, gone, lost).ranks == ranks


DATA = "/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
LOADING = (line(7, "load()"), line(1298, file=DATA))
IN_A_WORKER = (
    "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most"
    ' recent call last):\n  File "/usr/lib/python3.11/site-packages/torch/utils/data/x.py",'
    ' line 5, in loop\n  File "/home/me/data.py", line 12, in __getitem__\nValueError: empty'
)


@pytest.mark.parametrize(
    ("error", "cause", "stack"),
    [
        ("RuntimeError: [..] Connection closed by peer [127.0.0.1]:5546", "unknown", ()),
        ("RuntimeError: Timed out waiting 3000ms for recv operation to complete", "unknown", ()),
        ("RuntimeError: Detected mismatch between collectives on ranks.", "unknown", ()),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB.", "memory", ()),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/torch_1'", "shared memory", ()),
        ("RuntimeError: DataLoader worker (pid 7) is killed: Bus error.", "shared memory", ()),
        ("RuntimeError: unable to resize file </torch_7_1_0>: too large", "shared memory", ()),
        ("RuntimeError: [device.cc:84] Unable to find address for: ib7", "interface", ()),
        ("DistNetworkError: code: -98, name: EADDRINUSE, message: address in use", "port", ()),
        ("ValueError: sample 17 is empty", "error", ()),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "loader", LOADING),
        (IN_A_WORKER, "loader", ()),
    ],
)
def test_what_a_rank_raised(error, cause, stack):
    failed = Page(0, 3, state="failed", error=error, stack=stack or (line(7, "load()"),))
    found = judged(waiting(*STEP), failed, waiting(*STEP))
    assert (found.cause, found.ranks) == (cause, (1,) if cause != "unknown" else ())
    if cause != "unknown":
        place = "data.py:12 (in __getitem__)" if error == IN_A_WORKER else "train.py:7 (`load()`)"
        assert place in found.sentence


def slow_pages(late_s, others_wait):
    """Three ranks, of which rank 2 comes `late_s` after the others; shares of samples."""
    torch = line(3252, file="/x/site-packages/torch/distributed/c.py")
    inside, outside = Stack(others_wait, (line(10), torch)), Stack(10, (line(30, "load()"),))
    pages = []
    for rank in range(3):
        times = [0.1 * n + (late_s if rank == 2 else 0.0) for n in range(1, 13)]
        calls = tuple(replace(call(n + 1, 10), at_s=time) for n, time in enumerate(times))
        seen = (outside,) if rank == 2 else (outside, inside)
        pages.append(Page(rank, 3, state="returned", calls=calls, all=seen))
    return pages


def test_a_straggler_is_late_while_the_others_are_seen_waiting():
    found = judged(*slow_pages(0.06, others_wait=90))
    assert (found.cause, found.ranks, found.lines[2].line) == ("straggler", (2,), 30)
    assert found.sentence == (
        "Rank 2 is the cause: it is slow, not stuck: it came last to 12 of 12 collectives, 60 ms"
        " behind the first, and spends its time at train.py:30 (`load()`); the others wait for it"
        " 90 % of theirs"
    )
    # A clock that is wrong is no straggler, and neither is a rank that is a little late.
    assert judged(*slow_pages(0.06, others_wait=1)).cause == "nothing"
    assert judged(*slow_pages(0.002, others_wait=90)).cause == "nothing"


def test_ranks_that_are_late_in_turn_are_no_stragglers():
    """Rank 2 is the last at most collectives, but not at nearly all: the machine is busy."""
    pages = slow_pages(0.0, others_wait=90)
    for rank, last in ((1, (0, 1)), (2, (2, 3, 4))):
        calls = (replace(c, at_s=c.at_s + 0.06 * (c.number % 5 in last)) for c in pages[rank].calls)
        pages[rank] = replace(pages[rank], calls=tuple(calls))
    assert judged(*pages).cause == "nothing"
