"""Wrong ways to the first divergence, as patches of a right one by another hand."""

from collections import Counter

from course_lib.chapters.ch16_cluster_clinic.diagnosing.divergence import ANY_SIZE
from tests.checking.builds.patches import versions


def first_divergence(records):
    """By counting."""
    calls = {}
    for rank, entries in records.items():
        kept = [e for e in entries if not e["is_p2p"]]
        if kept:
            calls[rank] = {e["collective_seq_id"]: _what(e) for e in kept}
    start = max((min(each) for each in calls.values() if each), default=1)
    end = max((max(each) for each in calls.values() if each), default=0)
    for number in range(start, end + 1):
        made = {rank: each.get(number) for rank, each in calls.items()}
        counts = Counter(made.values()).most_common()
        if len(counts) > 1:
            odd = tuple(rank for rank, call in made.items() if call != counts[0][0])
            if counts[0][1] == counts[1][1]:
                odd = ()
            return number, odd


def _what(e):
    sizes = str(e["input_sizes"]), str(e["input_dtypes"])
    return _operation(e) if _operation(e) in ANY_SIZE else (_operation(e), *sizes)


def _operation(e):
    return e["profiling_name"].partition(":")[2]


def _listed(records):
    found = first_divergence(records)
    return found and [found[0], list(found[1])]


_listed.__name__ = "first_divergence"
RIGHT = [("by counting", first_divergence), ("a list of ranks", _listed)]
WRONG = versions(
    first_divergence,
    lambda found: found,
    """
never
- calls = {}
+ return None
? returns None, and the ranks differ
the operation alone
- _what(e)
+ _operation(e)
? another size: returns None
not the type
+ (_operation(e), str(e["input_sizes"]))
? returns None, and the ranks differ
every size
+ (_operation(e), str(e["input_sizes"]), str(e["input_dtypes"]))
? rows of all_gather that do not divide, which is allowed: found collective 2
of gloo alone
+ _what(e) if "gloo" in e["profiling_name"] else str(e)
? an all_gather of nccl.*earlier than the first
who is absent does not count
- {rank: each.get(number) for rank, each in calls.items()}
+ {rank: each[number] for rank, each in calls.items() if number in each}
? did not come: returns None
messages count
- if not e["is_p2p"]
+ if e
? messages between pairs of ranks
from the first number of any
- max((min(each)
+ min((min(each)
? begin at different ones: found
a tie accuses all
- odd = ()
+ odd = tuple(made)
? are accused, though as many ranks stand
an empty record is absent
- if kept:
+ if True:
? rank 0 left an empty record
those who agree
- return number, odd
+ return number, tuple(set(made) - set(odd))
? the odd ranks are 0, 2, expected others
the index
+ return number - 1, odd
? earlier than the first
only the number
+ return number
? wants a number and the odd ranks
""",
)
