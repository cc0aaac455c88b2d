"""One sentence for each kind of fault, from real records; and no healthy rank accused."""

from dataclasses import replace

import pytest
from pages import RECORDS, TORCH, call, evidence, line, sleeping, waiting, written

from course_lib.demos.faults.kinds import KINDS
from course_lib.diagnosing.judging import diagnose
from course_lib.diagnosing.page import Line, Page, Stack
from course_lib.diagnosing.reading import read
from course_lib.diagnosing.standing import End, Evidence, Record

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


def test_an_interface_that_is_missing_is_named(tmp_path):
    found = diagnose(read(written("interface", tmp_path))).finding
    assert found.sentence.startswith(
        "Rank 1 is the cause: it found no network interface called ib7 at surrounding_kinds.py:"
    )
    assert "GLOO_SOCKET_IFNAME" in found.remedy


def test_the_sentence_of_a_hang(tmp_path):
    report = diagnose(read(written("hang", tmp_path))).report()
    first, _, rest = report.partition("\n\n")
    assert first.startswith("Rank 1 is the cause: it has been at kinds.py:")
    assert "(`time.sleep(1)`) for " in first
    assert "s, while ranks 0 and 2 wait in all_reduce number 3 at kinds.py:" in first
    assert first.endswith("Look at what rank 1 does there before it calls the collective.")
    assert rest.splitlines()[1].startswith("  rank 1 is in its own code at kinds.py:")


STEP = [call(1, 10), call(2, 11, "all_gather")]


def judged(*pages):
    return diagnose(evidence(*pages)).finding


def test_of_two_ranks_that_call_different_things_neither_is_accused():
    found = judged(waiting(*STEP, call(3, 10)), waiting(*STEP, call(3, 20, "broadcast")))
    assert (found.cause, found.ranks) == ("collective", ())
    assert {each.line for each in found.lines.values()} == {10, 20}
    assert found.sentence == (
        "Ranks 0 and 1 disagree, and nothing shows which is wrong: rank 0 calls all_reduce at"
        " train.py:10 (in step) while rank 1 calls broadcast at train.py:20 (in step)"
    )


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
        assert f"rank {pages.index(odd)} calls all_gather" in found.sentence
        assert found.sentence.endswith("in the rounds before, all_reduce came first")
    assert judged(usual, odd, usual).ranks == (1,)


def test_the_larger_part_of_the_ranks_is_believed():
    odd = waiting(*STEP, call(3, 20, "broadcast"))
    usual = waiting(*STEP, call(3, 10))
    for place in range(4):
        pages = [usual] * 4
        pages[place] = odd
        assert judged(*pages).ranks == (place,)
    assert judged(odd, odd, usual, usual).ranks == ()


def test_gathering_different_sizes_is_no_fault_and_reducing_them_is():
    for operation, cause in (("all_gather", "nothing"), ("all_reduce", "size")):
        calls = [call(1, 10, operation, sizes=((size,),)) for size in (4, 4, 5)]
        pages = [Page(0, 3, state="returned", calls=(each,)) for each in calls]
        assert judged(*pages).cause == cause


def test_a_chain_of_groups_ends_at_the_rank_that_waits_for_nobody():
    """Rank 0 waits for 1 in one group, 1 for 2 in another, and 2 sleeps."""
    groups = {"a": (0, 1), "b": (1, 2)}
    first = waiting(call(1, 10, group="a"), groups=groups)
    second = waiting(call(1, 11, group="b"), groups=groups)
    found = judged(first, second, sleeping(groups=groups))
    assert (found.cause, found.ranks, found.lines[2].line) == ("stuck", (2,), 99)


def test_who_waits_for_a_receive_that_no_record_shows_is_not_accused():
    """`work.wait()` for a receive that began before the recorder watched."""
    inside = line(120, file="/home/me/course_lib/launch/flight.py")
    asleep = sleeping(*STEP, stack=(line(99, "work.wait()"), replace(inside, function="wait")))
    assert judged(waiting(*STEP, call(3, 10)), asleep, waiting(*STEP, call(3, 10))).ranks == ()


ROOTS = [replace(call(3, 10, "broadcast"), root=root) for root in (0, 1, 0)]
LOCKED = {"still_s": 3.0, "stack": (line(20, "fcntl.flock(file, LOCK_EX)"),)}
TALK = {"still_s": 3.0, "stack": (line(30),), "calls": tuple(STEP)}
GONE = Page(1, 3, calls=tuple(STEP), hears=True, stack=(line(40, "risky()"),))
LEFT = Page(1, 3, state="returned", reason="called os._exit(0)", stack=(line(50),))


@pytest.mark.parametrize(
    ("pages", "cause", "ranks", "words"),
    [
        ([waiting(*STEP, each) for each in ROOTS], "root", (1,), "broadcast with root 1 at"),
        (
            [waiting(*STEP, replace(each, root=-1)) for each in ROOTS],  # nothing is known of them
            "unknown", (), "all ranks are in broadcast number 3",
        ),
        (
            [waiting(*STEP, call(3, 10, root=0, operator=each)) for each in ("", "MAX", "")],
            "root", (1,), "all_reduce of MAX at train.py:10 (in step) while ranks 0 and 2 call",
        ),
        (
            [
                Page(0, 3, message="send", peer=1, tag=2, **TALK),
                Page(1, 3, message="recv", peer=0, tag=7, **TALK),
                waiting(*STEP, call(3, 10)),
            ],
            "tag", (), "rank 0 sends to rank 1 with tag 2",
        ),
        (
            [
                waiting(*STEP, call(3, 10), pid=70),
                Page(1, 3, pid=71, locked_by=70, **LOCKED),
                Page(2, 3, pid=72, locked_by=70, **LOCKED),
            ],
            "lock", (0,), "it holds the lock for which ranks 1 and 2 wait at train.py:20",
        ),
        (
            [waiting(*STEP, call(3, 10)), LEFT, waiting(*STEP, call(3, 10))],
            "finished early", (1,), "it has finished (called os._exit(0) at train.py:50",
        ),
        (
            [
                waiting(*STEP, call(3, 10)),
                sleeping(*STEP, error="OSError: disk is gone"),
                waiting(*STEP, call(3, 10)),
            ],
            "stuck", (1,), "after a thread of it raised OSError: disk is gone",
        ),
    ],
)  # fmt: skip
def test_what_a_page_says_beside_its_calls(pages, cause, ranks, words):
    found = judged(*pages)
    assert (found.cause, found.ranks) == (cause, ranks), found.sentence
    assert words in found.sentence


def test_who_was_not_told_to_end_was_dead_already():
    """torchrun ends the other ranks when one has died; nothing else says that it has."""
    others = [Record(rank, waiting(*STEP, call(3, 10)), told=True) for rank in (0, 2)]
    for hears, behind_s, words in (
        (True, 0.1, "was killed, or left by an exit that Python does not see, last seen at train"),
        (True, 9.0, "was stopped or killed 9 s before the others"),
        (False, 0.1, "Don't know"),  # it may have handled the signal itself
    ):
        gone = Record(1, replace(GONE, hears=hears), behind_s=behind_s)
        found = diagnose(Evidence((others[0], gone, others[1]))).finding
        assert words in found.sentence
        assert found.ranks == ((1,) if hears else ())


def test_who_was_gone_when_the_others_lost_a_peer_had_died():
    error = "RuntimeError: Connection closed by peer [127.0.0.1]:5546"
    lost = [waiting(*STEP, call(3, 10), state="failed", error=error, at_s=9.0)] * 2
    for at_s, ranks in ((8.9, (1,)), (9.1, ())):
        found = judged(lost[0], replace(GONE, at_s=at_s), lost[1])
        assert found.ranks == ranks, found.sentence


def test_a_barrier_that_no_record_shows_is_not_the_call_before_it():
    error = "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms"
    stack = (line(12), Line(TORCH, 5435, "monitored_barrier"))
    late = Page(0, 3, state="failed", error=error, stack=stack, calls=tuple(STEP), groups={"0": ()})
    found = judged(late, sleeping(*STEP), late)
    assert (found.cause, found.ranks, found.lines[1].line) == ("stuck", (1,), 99)


def test_an_aborted_rank_belongs_to_neither_side_where_both_called_at_its_line():
    sizes = [waiting(*STEP, call(3, 10, dtypes=(kind,))) for kind in ("Float", "Double")]
    c10d = Line(TORCH, 3252, "all_reduce")
    aborted = Record(0, Page(0, 3), crash=(line(10), c10d), fatal="Aborted")
    records = (aborted, *(Record(rank, page) for rank, page in enumerate(sizes, 1)))
    found = diagnose(Evidence(records)).finding
    assert (found.cause, found.ranks) == ("size", ())
    assert found.sentence.startswith("Ranks 1 and 2 disagree")


def test_of_an_aborted_rank_no_root_is_known():
    aborted = Record(0, Page(0, 2), crash=(line(12), Line(TORCH, 1, "all_reduce")), fatal="Aborted")
    page = waiting(*STEP, call(3, 10, root=0))
    found = diagnose(Evidence((aborted, Record(1, page)))).finding
    assert (found.cause, found.ranks) == ("size", ())


def test_an_aborted_rank_stays_in_the_call_from_its_line_when_another_went_on():
    """A rank that sends more than the others receive is done, and dies in the next call."""
    aborted = Record(0, Page(0, 2), crash=(line(12), Line(TORCH, 1, "alltoall")), fatal="Aborted")
    went_on = waiting(*STEP, call(3, 12, "alltoall"), call(4, 10))
    found = diagnose(Evidence((aborted, Record(1, went_on)))).finding
    assert (found.cause, found.ranks) == ("size", ())
    assert found.sentence.startswith("Rank 0 received another number of bytes")


def test_an_aborted_rank_is_in_the_group_in_which_others_called_at_its_line():
    groups = {"0": (0, 1, 2), "1": (0, 2)}
    c10d = Line(TORCH, 4287, "all_gather")
    aborted = Record(0, Page(0, 3, state="joining"), crash=(line(60), c10d), fatal="Aborted")
    gathered = call(1, 60, "all_gather", group="1")
    third = Page(2, 3, calls=(*STEP, gathered), groups=groups, still_s=3.0)
    second = waiting(*STEP, call(3, 10), groups=groups)
    found = diagnose(Evidence((aborted, Record(1, second), Record(2, third)))).finding
    assert (found.cause, found.ranks) == ("size", ())
    assert found.sentence.startswith("Rank 0 received another number of bytes than expected at tra")


def test_who_has_just_come_out_of_a_collective_is_not_accused():
    moving = sleeping(*STEP, still_s=0.4)
    found = judged(waiting(*STEP, call(3, 10)), moving, waiting(*STEP, call(3, 10)))
    assert (found.cause, found.ranks) == ("unknown", ())


def test_all_in_one_call_that_fits_is_not_known():
    found = judged(*[waiting(*STEP, call(3, 10))] * 3)
    assert (found.cause, found.ranks) == ("unknown", ())
    assert found.sentence.startswith("Don't know: all ranks are in all_reduce number 3 at train.py")
    assert "SOCKET_IFNAME" in found.remedy


def test_a_lost_page_is_not_a_broken_rank():
    found = judged(waiting(*STEP, call(3, 10)), None, waiting(*STEP, call(3, 10)))
    assert (found.cause, found.ranks) == ("unknown", ())
    assert found.sentence.startswith("Don't know: rank 1 left no page")


def test_a_rank_that_never_came():
    error = "RuntimeError: rank 0 of 3 waited 2 s for the others"
    early = [Page(0, 3, state="failed", error=error), Page(1, 3, state="joining", still_s=2.0)]
    found = judged(*early, None)
    assert (found.cause, found.ranks) == ("never came", (2,))
    assert found.sentence == (
        "Rank 2 never came: ranks 0 and 1 of 3 wait to begin, and rank 2 left no page"
    )
    assert judged(*early).ranks == ()  # all are there, and none gets in
    assert judged(early[1], early[1], None).ranks == ()  # it may just be slow
    late = Record(2, end=End(None))  # it was started
    assert diagnose(Evidence((*evidence(*early).records, late))).finding.ranks == ()


def ended(page, **end):
    return Record(page.rank, page, End(**end))


def test_who_is_aborted_by_the_watchdog_waited_for_another():
    """NCCL's watchdog ends the ranks that wait, by SIGABRT."""
    pages = evidence(waiting(*STEP, call(3, 10)), sleeping(*STEP), waiting(*STEP, call(3, 10)))
    aborted = [
        replace(
            record, end=End(-6, reason="was killed by SIGABRT"), log="Watchdog caught a timeout"
        )
        for record in pages.records
    ]
    found = diagnose(Evidence((aborted[0], pages.records[1], aborted[2]))).finding
    assert (found.cause, found.ranks) == ("stuck", (1,))


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: [..] Connection closed by peer [127.0.0.1]:5546", "unknown"),
        ("RuntimeError: Timed out waiting 3000ms for recv operation to complete", "unknown"),
        ("RuntimeError: Detected mismatch between collectives on ranks.", "unknown"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", "memory"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/torch_1'", "shared memory"),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.",
            "shared memory",
        ),
        (
            "RuntimeError: unable to resize file </torch_7_1_0> to the right size: File too large",
            "shared memory",
        ),
        (
            "RuntimeError: [enforce fail at device.cc:84] Unable to find address for: ib7",
            "interface",
        ),
        ("DistNetworkError: code: -98, name: EADDRINUSE, message: address in use", "port"),
        ("ValueError: sample 17 is empty", "error"),
    ],
)
def test_what_a_rank_raised(error, cause):
    failed = Page(0, 3, state="failed", error=error, stack=(line(7, "load()"),))
    found = judged(waiting(*STEP), failed, waiting(*STEP))
    assert (found.cause, found.ranks) == (cause, (1,) if cause != "unknown" else ())
    if cause != "unknown":
        assert "train.py:7 (`load()`)" in found.sentence


def test_a_worker_that_was_lost_is_not_another_rank():
    data = "/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
    stack = (line(7, "for batch in loader:"), line(1298, file=data))
    error = "ConnectionResetError: [Errno 104] Connection reset by peer"
    failed = Page(0, 3, state="failed", error=error, stack=stack)
    found = judged(waiting(*STEP), failed, waiting(*STEP))
    assert (found.cause, found.ranks, found.lines[1].line) == ("loader", (1,), 7)


def test_a_worker_that_raised_is_named_by_its_own_line():
    error = (
        "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most"
        ' recent call last):\n  File "/usr/lib/python3.11/site-packages/torch/utils/data/x.py",'
        ' line 5, in loop\n  File "/home/me/data.py", line 12, in __getitem__\nValueError: empty'
    )
    failed = Page(0, 3, state="failed", error=error, stack=(line(7, "for batch in loader:"),))
    found = judged(waiting(*STEP), failed, waiting(*STEP))
    assert (found.cause, found.lines[1].place) == ("loader", "data.py:12")


def slow_pages(late_s, others_wait):
    """Three ranks, of which rank 2 comes `late_s` after the others; shares of samples."""
    inside = Stack(
        others_wait, (line(10), line(3252, file="/x/site-packages/torch/distributed/c.py"))
    )
    outside = Stack(10, (line(30, "load()"),))
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


def test_ranks_that_are_late_in_turn_are_no_stragglers():
    """Rank 2 is the last at most collectives, but not at nearly all: the machine is busy."""
    pages = slow_pages(0.0, others_wait=90)
    for rank, last in ((1, (0, 1)), (2, (2, 3, 4))):
        calls = (replace(c, at_s=c.at_s + 0.06 * (c.number % 5 in last)) for c in pages[rank].calls)
        pages[rank] = replace(pages[rank], calls=tuple(calls))
    assert judged(*pages).cause == "nothing"


def test_a_call_behind_which_another_is_over_is_over():
    """gloo ticks off a call a moment after it is done."""
    late = [replace(STEP[0], over=False), STEP[1]]
    found = judged(*[sleeping(*late, still_s=5.0)] * 2, waiting(*STEP, call(3, 10)))
    assert found.cause == "stuck"


def test_a_clock_that_is_wrong_is_no_straggler():
    assert judged(*slow_pages(0.06, others_wait=1)).cause == "nothing"
    assert judged(*slow_pages(0.002, others_wait=90)).cause == "nothing"


def test_without_evidence_nobody_is_accused():
    for empty in (Evidence(), evidence(None), evidence(None, None, None)):
        found = diagnose(empty).finding
        assert (found.cause, found.ranks) == ("unknown", ())
    assert "Record a launch" in diagnose(Evidence()).report()


def test_aborted_ranks_whose_calls_are_not_known_are_not_accused():
    """An asynchronous call of another size: gloo aborts those who receive too much."""
    crash = (line(7, "work.wait()"),)
    log = (
        "op.preamble.length <= op.nbytes. 16 vs 8. Received data size doesn't match expected size."
    )
    aborted = [Record(rank, Page(rank, 3), End(-6), log, crash) for rank in range(2)]
    found = diagnose(Evidence((*aborted, Record(2, waiting(*STEP, call(3, 7)))))).finding
    assert (found.cause, found.ranks) == ("size", ())
    assert found.sentence == (
        "Ranks 0 and 1 received another number of bytes than expected at train.py:7"
        " (`work.wait()`), and nothing shows whose call is wrong"
    )


def test_one_call_too_many_at_the_end():
    done = [Page(rank, 3, state="returned", calls=tuple(STEP)) for rank in range(2)]
    found = judged(*done, waiting(*STEP, call(3, 20, "barrier")))
    assert (found.cause, found.ranks, found.lines[2].line) == ("extra", (2,), 20)
    assert "which ranks 0 and 1, who have finished, did not" in found.sentence
    found = judged(done[0], waiting(*STEP, call(3, 20, "barrier")))
    assert (found.cause, found.ranks) == ("finished early", ())


def test_ranks_at_one_line_of_their_own_are_accused_together():
    pages = (sleeping(*STEP), sleeping(*STEP), waiting(*STEP, call(3, 10)))
    found = judged(*pages)
    assert (found.cause, found.ranks) == ("stuck", (0, 1))
    assert found.sentence.startswith("Ranks 0 and 1 are the cause: they have been at train.py:99")
    apart = judged(sleeping(*STEP, at=98, still_s=2.0), *pages[1:])
    assert apart.ranks == (1,)


def test_who_was_aborted_by_a_thread_of_gloo_is_not_accused_without_a_log():
    crash = (line(7, "work.wait()"),)
    aborted = [
        Record(rank, Page(rank, 3), crash=crash, fatal="Aborted", outside=True) for rank in (0, 1)
    ]
    found = diagnose(Evidence((*aborted, Record(2, waiting(*STEP, call(3, 7)))))).finding
    assert (found.cause, found.ranks) == ("size", ())
    by_python = [replace(record, outside=False) for record in aborted[:1]]
    pages = [Record(rank, waiting(*STEP, call(3, 7))) for rank in (1, 2)]
    assert diagnose(Evidence((*by_python, *pages))).finding.ranks == (0,)


@pytest.mark.parametrize(
    ("sizes", "accused"), [(((4,), (4,)), (2,)), (((4,), (5,)), ()), (((4,),), ())]
)
def test_aborted_in_a_gather_in_which_all_others_agree(sizes, accused):
    crash = (line(9), Line(TORCH, 4287, "all_gather"))
    others = [
        Record(rank, waiting(*STEP, call(3, 9, "all_gather", sizes=(size,)), rank=rank))
        for rank, size in enumerate(sizes)
    ]
    rank = len(others)
    aborted = Record(rank, Page(rank, rank + 1), crash=crash, fatal="Aborted", outside=True)
    found = diagnose(Evidence((*others, aborted))).finding
    assert (found.cause, found.ranks) == ("size", accused)


@pytest.mark.parametrize(("at", "words"), [(10, "a last batch"), (20, "different lines")])
def test_another_size_from_another_line_is_another_call(at, words):
    odd = waiting(*STEP, call(3, at, sizes=((1,),)))
    found = judged(odd, *(waiting(*STEP, call(3, 10)) for _ in range(2)))
    assert (found.cause, found.ranks) == ("size", (0,))
    assert words in found.remedy


def test_two_calls_too_many_are_found_where_they_began():
    """DDP broadcasts buffers before a forward pass: rank 0 evaluates alone."""
    buffers = [call(number, 10, "broadcast") for number in (3, 4)]
    others = [waiting(*STEP, *buffers, call(5, 10)) for _ in range(2)]
    alone = [call(number, 77, "broadcast") for number in (3, 4)]
    found = judged(waiting(*STEP, *alone, call(5, 10, "broadcast")), *others)
    assert (found.cause, found.ranks, found.lines[0].line) == ("extra", (0,), 77)
    assert "2 calls more than ranks 1 and 2" in found.sentence
