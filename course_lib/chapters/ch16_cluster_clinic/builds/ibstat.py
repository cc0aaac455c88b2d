"""Build 16.12: a parser of ibstat."""

from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Never, Rows, compare_here
from course_lib.checking.exercises import Unanswered
from course_lib.checking.helpers import described
from course_lib.clinic import ports
from course_lib.clinic.recorded import output

# Each field's type, and that in words.
_FIELDS: dict[str, tuple[Any, str]] = dict.fromkeys(
    ("device", "port", "state", "physical", "gbit_per_s", "link_layer"), (str, "a text")
) | {"port": (int, "an int"), "gbit_per_s": ((int, float), "a number")}
_BLOCK = """CA '{device}'
        CA type: MT4123
        Number of ports: {count}
        Firmware version: 20.31.1014
        Hardware version: 0
        Node GUID: 0xb8599f0300000000
        System image GUID: 0xb8599f0300000000
"""
_PORT = """        Port {number}:
                State: {state}
                Physical state: {physical}
                Rate: {rate}
                Base lid: 10
                LMC: 0
                SM lid: 1
                Capability mask: 0x2651e848
                Port GUID: 0xb8599f0300000000
                Link layer: {layer}
"""


def _block(device: str, *told: tuple[str, str, str, str]) -> str:
    """One device, with (state, physical state, rate, link layer) of each port."""
    its = [
        _PORT.format(number=number, state=state, physical=physical, rate=rate, layer=layer)
        for number, (state, physical, rate, layer) in enumerate(told, start=1)
    ]
    return _BLOCK.format(device=device, count=len(told)) + "".join(its)


def _as_told(parse: Any, what: str, text: str) -> Rows:
    """Every field of every port is as the text has it."""
    right, given = ports.ibstat(text), parse(text)
    if given is None:
        raise Unanswered(f"{what}: ibstat returns None")
    wants = f"{what}: ibstat wants a tuple of Port, got {described(given)}"
    yield Never(not isinstance(given, list | tuple), wants)
    for one in given:
        wants = f"{what}: each part wants to be a Port, got {described(one)}"
        yield Never(not isinstance(one, ports.Port), wants)
    many = f"{what}: found {len(given)} ports, expected {len(right)}"
    yield Never(len(given) != len(right), many)
    for number, (mine, its) in enumerate(zip(given, right, strict=True), start=1):
        for name, (kind, words) in _FIELDS.items():
            found, told, where = getattr(mine, name), getattr(its, name), f"{what}, port {number}"
            yield Never(found is None and told is not None, f"{where}: {name} is missing")
            wants = f"{where}: {name} wants {words}, got {described(found)}"
            yield Never(not isinstance(found, kind), wants)
            other = f"{where}: {name} is {found!r}, and the text says something else"
            yield Never(found != told, other)


def _one(parts: SimpleNamespace) -> Rows:
    yield from _as_told(parts.ibstat, "a recorded output with one port", output("ibstat").text)


def _several(parts: SimpleNamespace) -> Rows:
    four, ethernet = output("ibstat_slow").text, ("Down", "Disabled", "10", "Ethernet")
    tabs = output("ibstat_panic").text.rpartition("ibpanic")[0]
    for what, text in {
        "four devices, of which one is slow": four,
        "one device with two ports": _block("mlx4_0", _port("Active", "LinkUp", "56"), ethernet),
        "a device without a port before the others": _block("mlx5_9") + four,
        "a recorded output with tabs": tabs,
    }.items():
        yield from _as_told(parts.ibstat, what, text)


def _port(state: str, physical: str, rate: str) -> tuple[str, str, str, str]:
    return state, physical, rate, "InfiniBand"


def _down(parts: SimpleNamespace) -> Rows:
    polling, starting = _port("Down", "Polling", "2.5"), _port("Initializing", "LinkUp", "100")
    for what, text in {
        "a recorded port that is down": output("ibstat_down").text,
        "a port that looks for its cable's other end": _block("mlx5_0", polling),
        "a port without a subnet manager": _block("mlx5_0", starting),
    }.items():
        yield from _as_told(parts.ibstat, what, text)


def _unreadable(parts: SimpleNamespace) -> Rows:
    given = parts.ibstat("")
    nothing = "a machine without a device prints nothing: expected no port"
    yield Never(given is None or len(given), f"{nothing}, got {given!r}")
    whole = output("ibstat").text
    for what, line, text in (
        (
            "the last line of a recorded output is an error",
            "ibpanic",
            output("ibstat_panic").text,
        ),
        ("a Rate that is no number", "fast", _block("mlx5_0", _port("Active", "LinkUp", "fast"))),
        *(
            (f"{which} port without a {name}", "", more + _without(name, whole))
            for name in ("State", "Physical state", "Rate", "Link layer")
            for which, more in (("a", ""), ("a second", whole))
        ),
        ("the first line is an error", "ibpanic", f"ibpanic: no driver\n{whole}"),
        ("the only line is an error", "ibpanic", "ibpanic: no driver\n"),
    ):
        try:
            taken = described(parts.ibstat(text))
        except ValueError as error:
            shown = f"{what}: the ValueError does not show the line: {error}"
            yield Never(line not in str(error), shown)
        else:
            yield Never(True, f"{what}, and ibstat returns {taken}: expected a ValueError")


def _without(name: str, text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.strip().startswith(f"{name}:"))


IBSTAT = build(
    "ibstat",
    title="an ibstat parser",
    hints=(
        "Go through the lines. A line that begins with CA names the device of all ports below it, "
        "until the next one. What does a port begin with?",
        "line.strip().partition(': ') gives a field's name and its value. 'State' and 'Physical "
        "state' are two fields.",
        "A port is complete when the next one, the next device or the end of the text comes. Only "
        "then make the Port, and only then can you tell which field is missing.",
        "Every line of a device is further in. What begins at the left edge and is no CA is an "
        "error that ibstat printed; float('fast') is a ValueError that shows 'fast'.",
    ),
    steps=(
        compare_here("one port", ("ibstat",), _one),
        compare_here("several devices and ports", ("ibstat",), _several),
        compare_here("ports that are down", ("ibstat",), _down),
        compare_here("what it can't read", ("ibstat",), _unreadable),
    ),
)
