"""Answers to chapter 14 that a check must refuse: (exercise, what was thought, answer)."""

from course_lib.chapters.ch14_parameter_servers.exercises import _CLAIMS, _PAIRS, _TRACES, _WAYS

_BARRIERS = {name: barrier for name, (barrier, _) in _TRACES.items()}
_VERDICTS = {claim: verdict for claim, (verdict, _) in _CLAIMS.items()}
_EARLIER = {pair: which for pair, (which, _) in _PAIRS.items()}
_WAY = {team: way for team, (way, _) in _WAYS.items()}
_LEAVES = "rows' gradient of 0 leaves | all-reduce of 0 ends"
_LAST = "server updates the table | server looks up for 1"


def _applied(weight):
    def apply(table, rate, pushed):
        for samples, gradient in pushed:
            for row, value in gradient.items():
                table[row] -= rate * value * weight(samples, pushed)
        return table

    return apply


def _by_server(place=lambda row, servers: row % servers, own=lambda row, servers: row // servers):
    def by_server(ids, gradients, servers):
        sums = [{} for _ in range(servers)]
        for row, gradient in zip(ids, gradients, strict=True):
            mine = sums[place(row, servers)]
            mine[own(row, servers)] = mine.get(own(row, servers), 0.0) + gradient
        return sums

    return by_server


def _last_wins(ids, gradients, servers):
    sums = [{} for _ in range(servers)]
    for row, gradient in zip(ids, gradients, strict=True):
        sums[row % servers][row // servers] = gradient
    return sums


MISTAKES = [
    ("14.1", "every look-up travels", (208, 15 * 105.6, 19_200)),
    ("14.1", "fp32", (51.6, 15 * 26, 38_400)),
    ("14.1", "to all ranks, itself included", (26, 16 * 13.2, 19_200)),
    ("14.1", "no numbers of rows", (25.6, 15 * 12.8, 19_200)),
    ("14.1", "an all-reduce sends the table once", (26, 198, 10_240)),
    ("14.3", "as it was", _applied(lambda samples, pushed: 1)),
    ("14.3", "the mean over trainers", _applied(lambda samples, pushed: 1 / len(pushed))),
    ("14.3", "by samples, not by their part", _applied(lambda samples, pushed: samples)),
    ("14.4", "nothing is missing in E", _BARRIERS | {"E": "none"}),
    ("14.4", "the trainers must take turns", _BARRIERS | {"A": "before", "D": "before"}),
    ("14.4", "before and after swapped", _BARRIERS | {"B": "after", "C": "before"}),
    ("14.5", "the note is right", _VERDICTS | {"Gloo is a default backend of RPC": "right"}),
    ("14.5", "Gloo is for nothing", _VERDICTS | {"Gloo is a backend of DDP": "backend"}),
    (
        "14.5",
        "periodically is right",
        _VERDICTS | {"DDP: workers sum their gradients periodically": "right"},
    ),
    ("14.5", "one is missing", dict(list(_VERDICTS.items())[:6])),
    ("14.6", "the last gradient of a row", _last_wins),
    ("14.6", "the table's numbers", _by_server(own=lambda row, servers: row)),
    ("14.6", "mod and div swapped", _by_server(own=lambda row, servers: row % servers)),
    ("14.7", "all alike", (2, 2, 2)),
    ("14.7", "the mean of the three means", (20, 1.1, 22.2 / 3)),
    ("14.7", "one other trainer", (10, 1, 30 / 21)),
    ("14.11", "collectives need nobody", _WAY | {"C": "all-to-all"}),
    ("14.11", "a server is always best", _WAY | {"B": "server", "D": "server"}),
    ("14.8", "the rows wait for the all-reduce", _EARLIER | {_LEAVES: "second"}),
    ("14.8", "all is in step", dict.fromkeys(_EARLIER, "first")),
    ("14.8", "the table waits for nobody", _EARLIER | {_LAST: "either"}),
]
OTHER_FORMS = [
    ("14.1", "rounded, in another type", [26.0, 198, 19200]),
    ("14.7", "rounded", (20.0, 1.1, 2.0)),
]
