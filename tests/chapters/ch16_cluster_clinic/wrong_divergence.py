"""Wrong ways to the first divergence: (what was thought, answer, words of the refusal)."""

from collections import Counter

from course_lib.diagnosing.divergence import ANY_SIZE


def _divergence(
    what=lambda e: (
        _operation(e)
        if _operation(e) in ANY_SIZE
        else (_operation(e), str(e["input_sizes"]), str(e["input_dtypes"]))
    ),
    messages=False,
    absent=True,
    begin=max,
    tie=lambda camps: (),
    empty=False,
    last=False,
    result=lambda number, odd: (number, odd),
):
    """One that is right unless something is changed."""

    def first_divergence(records):
        calls = {}
        for rank, entries in records.items():
            kept = [e for e in entries if messages or not e["is_p2p"]]
            if kept or empty:
                calls[rank] = {e["collective_seq_id"]: what(e) for e in kept}
        if not any(calls.values()):
            return None
        start = begin(min(each) for each in calls.values() if each)
        end = max(max(each) for each in calls.values() if each)
        found = None
        for number in range(start, end + 1):
            made = {r: each.get(number) for r, each in calls.items() if absent or number in each}
            counts = Counter(made.values()).most_common()
            if len(counts) > 1:
                if counts[0][1] == counts[1][1]:
                    odd = tie(made)
                else:
                    odd = tuple(r for r, call in made.items() if call != counts[0][0])
                found = result(number, odd)
                if not last:
                    return found
        return found

    return first_divergence


def _operation(e):
    return e["profiling_name"].partition(":")[2]


WRONG = [
    ("never", lambda records: records.get(-1), "returns None, and the ranks differ"),
    ("the operation alone", _divergence(what=_operation), "another size: returns None"),
    (
        "not the type",
        _divergence(what=lambda e: (_operation(e), str(e["input_sizes"]))),
        "returns None, and the ranks differ",
    ),
    (
        "every size",
        _divergence(what=lambda e: (_operation(e), str(e["input_sizes"]), str(e["input_dtypes"]))),
        "rows that do not divide, which is allowed: found collective 1|found collective 2",
    ),
    ("who is absent does not count", _divergence(absent=False), "did not come: returns None"),
    ("messages count", _divergence(messages=True), "messages between pairs of ranks"),
    ("from the first number of any", _divergence(begin=min), "begin at different ones: found"),
    ("a tie accuses all", _divergence(tie=tuple), "are accused, though as many ranks stand"),
    ("an empty record is absent", _divergence(empty=True), "rank 0 left an empty record"),
    ("the last that differs", _divergence(last=True), "later than the first that differs"),
    (
        "those who agree",
        _divergence(result=lambda n, odd: (n, tuple({0, 1, 2} - set(odd)))),
        "the odd ranks are 0, 2, expected others",
    ),
    ("the index", _divergence(result=lambda n, odd: (n - 1, odd)), "earlier than the first"),
    (
        "of gloo alone",
        _divergence(
            what=lambda e: (
                e["profiling_name"]
                if e["profiling_name"].removeprefix("gloo:") in ANY_SIZE
                else (_operation(e), str(e["input_sizes"]), str(e["input_dtypes"]))
            )
        ),
        "an all_gather of nccl.*earlier than the first",
    ),
    ("only the number", _divergence(result=lambda n, odd: n), "wants a number and the odd ranks"),
]
for _, wrong, _ in WRONG:
    wrong.__name__ = "first_divergence"

RIGHT = [
    ("by counting", _divergence()),
    ("a list of ranks", _divergence(result=lambda n, o: [n, list(o)])),
]
