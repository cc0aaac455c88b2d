"""Whether processes can be started and can talk to each other, as every demo needs."""

import time

from course_lib import launch
from course_lib.doctor.finding import Finding

SLOW_START_S = 20.0
START_TIMEOUT_S = 120.0


def ranks(count: int = 2) -> Finding:
    """Start `count` ranks, as every demo does, and let them add up their numbers."""
    name = f"{count} ranks"
    try:
        taken_s = _start(count)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "fix what is missing above, close other programs and try again"
        return Finding(name, "missing", f"did not start ({said})", remedy)
    text = f"started, exchanged numbers and ended in {taken_s:.1f} s"
    if taken_s > SLOW_START_S:
        return Finding(name, "slow", text, "close other programs; a virus scanner may slow starts")
    return Finding(name, "ok", text)


def _start(count: int) -> float:
    """Seconds that `count` ranks took. Raises what the launcher raises, or RuntimeError."""
    start_s = time.monotonic()
    sums = launch.run(_add_up_ranks, ranks=count, timeout_s=START_TIMEOUT_S, stream=False)
    expected = sum(range(count))
    if sums != [expected] * count:
        raise RuntimeError(f"the ranks added up their numbers to {sums} instead of {expected}")
    return time.monotonic() - start_s


def _add_up_ranks() -> int:
    import torch
    import torch.distributed as dist

    rank = launch.init()
    number = torch.tensor(rank.rank, device=rank.device)
    dist.all_reduce(number)
    return int(number)
