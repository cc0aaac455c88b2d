"""Answers to chapter 15 that a check must refuse: (exercise, what was thought, answer)."""

from course_lib.chapters.ch15_launchers_and_recovery.exercises import (
    _CLAIMS,
    _OPTIONS,
    _SYMPTOMS,
    _TEAMS,
    _best_offer,
    _pieces,
)

_TEAM_NAMES = list(_TEAMS)
_BUY = {team: _best_offer(*times) for team, (*times, _) in _TEAMS.items()}
_CAUSE = {symptom: cause for symptom, (cause, _) in _SYMPTOMS.items()}
_MENDED = {option: value for option, (value, _) in _OPTIONS.items()} | {
    "HEAD": "$(hostname)",
    "torchrun --rdzv-endpoint": "$HEAD:29400",
    "torchrun --max-restarts": "3",
}
_TRUE = {claim: right for claim, (right, _) in _CLAIMS.items()}
_FIRST = next(iter(_CAUSE))


def _from_slurm(by_node=False, local=True, text=True, world=True):
    def from_slurm(slurm, address, port):
        each, local_rank = int(slurm["SLURM_NTASKS_PER_NODE"]), int(slurm["SLURM_LOCALID"])
        node, rank = int(slurm["SLURM_NODEID"]), int(slurm["SLURM_PROCID"])
        told = {
            "RANK": node * each + local_rank if by_node else rank,
            "WORLD_SIZE": int(slurm["SLURM_NTASKS"]) if world else each,
            "LOCAL_RANK": local_rank if local else rank,
            "LOCAL_WORLD_SIZE": each,
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }
        return {name: str(value) for name, value in told.items()} if text else told

    return from_slurm


def _equal_parts(total, writers, readers, rank):
    """Thinks that all parts are equally long, rounded down."""
    mine, theirs = total // readers, total // writers
    low, high = rank * mine, (rank + 1) * mine
    found = []
    for writer in range(writers):
        start, stop = max(low, writer * theirs), min(high, (writer + 1) * theirs)
        if start < stop:
            found.append((writer, start - writer * theirs, stop - writer * theirs))
    return found


def _in_the_whole(total, writers, readers, rank):
    """Counts columns from the beginning of the state, not of the file."""
    found = []
    for writer, start, stop in _pieces(total, writers, readers, rank):
        first = total * writer // writers
        found.append((writer, first + start, first + stop))
    return found


def _with_empty(total, writers, readers, rank):
    low, high = total * rank // readers, total * (rank + 1) // readers
    found = []
    for writer in range(writers):
        first, last = total * writer // writers, total * (writer + 1) // writers
        if first <= high and low <= last:
            found.append((writer, max(first, low) - first, min(last, high) - first))
    return found


def _pieces_as_lists(*sizes):
    return [list(piece) for piece in _pieces(*sizes)]


_SAVE_S, _MTBF_S = 41.386, 31_640.6
_YOUNG_MIN = 26.97
_LOST = 0.0606
MISTAKES = [
    ("15.1", "GB over Gb/s", [8 * _SAVE_S, 8.789, _YOUNG_MIN, _LOST]),
    ("15.1", "forgets the 2 under the root", [_SAVE_S, 8.789, _YOUNG_MIN / 2**0.5, _LOST]),
    ("15.1", "the failures of one GPU", [_SAVE_S, 36_000.0, 1726.0, 0.0008]),
    ("15.1", "leaves the restarts out", [_SAVE_S, 8.789, _YOUNG_MIN, _LOST - 300 / _MTBF_S]),
    ("15.2", "always storage", dict.fromkeys(_BUY, "storage")),
    ("15.2", "always GPUs", dict.fromkeys(_BUY, "GPUs")),
    ("15.2", "leaves one out", {team: _BUY[team] for team in _TEAM_NAMES[:2]}),
    ("15.3", "node by node, however they are dealt", _from_slurm(by_node=True)),
    ("15.3", "devices by rank", _from_slurm(local=False)),
    ("15.3", "numbers instead of text", _from_slurm(text=False)),
    ("15.3", "the world is one node", _from_slurm(world=False)),
    ("15.4", "equal parts, rounded down", _equal_parts),
    ("15.4", "counts in the whole state", _in_the_whole),
    ("15.4", "takes empty pieces", _with_empty),
    ("15.5", "all are one process", dict.fromkeys(_CAUSE, "one process")),
    ("15.5", "clipping at first", _CAUSE | {_FIRST: "clipping"}),
    ("15.5", "rare saves change losses", _CAUSE | {_FIRST: "saved too seldom"}),
    ("15.6", "leaves the agents", _MENDED | {"sbatch --ntasks-per-node": "8"}),
    ("15.6", "meets itself", _MENDED | {"torchrun --rdzv-endpoint": "127.0.0.1:29400"}),
    ("15.6", "a name without a port", _MENDED | {"torchrun --rdzv-endpoint": "$(hostname)"}),
    ("15.6", "one GPU a node", _MENDED | {"sbatch --gpus-per-node": "1"}),
    ("15.6", "a core for each GPU", _MENDED | {"srun --cpus-per-task": "8"}),
    ("15.6", "no restart", _MENDED | {"torchrun --max-restarts": "0"}),
    ("15.6", "one rank a node", _MENDED | {"torchrun --nproc-per-node": "1"}),
    ("15.7", "the second from 1,120", [1740, 1560, 1080, 840]),
    ("15.7", "forgets the first attempt's end", [1860, 1560, 360 * 4, 60 * 4]),
    ("15.7", "half an interval each", [1750, 1550, 1120, 800]),
    ("15.8", "a graph for each size", [1, 2, 2, 1, 3]),
    ("15.8", "a graph for each epoch", [1, 6, 6, 3, 4]),
    ("15.8", "1 fits the graph for all sizes", [1, 2, 1, 1, 2]),
    ("15.9", "all false", dict.fromkeys(_TRUE, False)),
    ("15.9", "all true", dict.fromkeys(_TRUE, True)),
]
OTHER_FORMS = [
    ("15.1", "text with units", ["41.4 s", 8.79, 26.97, "6.06 %"]),
    ("15.2", "in another order", dict(reversed(_BUY.items()))),
    ("15.4", "pieces as lists", _pieces_as_lists),
    ("15.6", "numbers", _MENDED | {"sbatch --nodes": 4, "torchrun --max-restarts": 10}),
    ("15.6", "another name", _MENDED | {"torchrun --rdzv-endpoint": "node0:29400"}),
    ("15.6", "expanded once", _MENDED | {"torchrun --rdzv-endpoint": "$(hostname):29400"}),
]
