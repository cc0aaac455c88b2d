"""Build 16.12: a parser of ibstat."""

from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import Step, build
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.clinic import ports
from course_lib.clinic.recorded import output

_FIELDS = ("device", "port", "state", "physical", "gbit_per_s", "link_layer")
_KINDS: dict[str, type | tuple[type, ...]] = {"port": int, "gbit_per_s": (int, float)}
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
    parts = [_BLOCK.format(device=device, count=len(told))]
    for number, (state, physical, rate, layer) in enumerate(told, start=1):
        parts.append(
            _PORT.format(number=number, state=state, physical=physical, rate=rate, layer=layer)
        )
    return "".join(parts)


def _compare(parse: Any, text: str, what: str) -> None:
    """Raise Wrong at the first port, or the first field, that is not as the text has it."""
    right = ports.ibstat(text)
    given = parse(text)
    if given is None:
        raise Unanswered(f"{what}: ibstat returns None")
    if not isinstance(given, list | tuple):
        raise Wrong(f"{what}: ibstat wants a tuple of Port, got {described(given)}")
    for one in given:
        if not isinstance(one, ports.Port):
            raise Wrong(f"{what}: each part wants to be a Port, got {described(one)}")
    if len(given) != len(right):
        raise Wrong(f"{what}: found {len(given)} ports, expected {len(right)}")
    for number, (mine, its) in enumerate(zip(given, right, strict=True), start=1):
        for name in _FIELDS:
            _compare_field(name, getattr(mine, name), getattr(its, name), f"{what}, port {number}")


def _compare_field(name: str, given: Any, right: Any, where: str) -> None:
    kind = _KINDS.get(name, str)
    if given is None and right is not None:
        raise Wrong(f"{where}: {name} is missing")
    if not isinstance(given, kind):
        wants = {"port": "an int", "gbit_per_s": "a number"}.get(name, "a text")
        raise Wrong(f"{where}: {name} wants {wants}, got {described(given)}")
    if given != right:
        raise Wrong(f"{where}: {name} is {given!r}, and the text says something else")


def _one(parts: SimpleNamespace) -> None:
    _compare(parts.ibstat, output("ibstat").text, "a recorded output with one port")


def _several(parts: SimpleNamespace) -> None:
    four = output("ibstat_slow").text
    _compare(parts.ibstat, four, "four devices, of which one is slow")
    two = _block(
        "mlx4_0",
        ("Active", "LinkUp", "56", "InfiniBand"),
        ("Down", "Disabled", "10", "Ethernet"),
    )
    _compare(parts.ibstat, two, "one device with two ports")
    _compare(parts.ibstat, _block("mlx5_9") + four, "a device without a port before the others")
    tabs = output("ibstat_panic").text.rpartition("ibpanic")[0]
    _compare(parts.ibstat, tabs, "a recorded output with tabs")


def _down(parts: SimpleNamespace) -> None:
    _compare(parts.ibstat, output("ibstat_down").text, "a recorded port that is down")
    polling = _block("mlx5_0", ("Down", "Polling", "2.5", "InfiniBand"))
    _compare(parts.ibstat, polling, "a port that looks for its cable's other end")
    starting = _block("mlx5_0", ("Initializing", "LinkUp", "100", "InfiniBand"))
    _compare(parts.ibstat, starting, "a port without a subnet manager")


def _unreadable(parts: SimpleNamespace) -> None:
    if (given := parts.ibstat("")) is None or len(given):
        raise Wrong(f"a machine without a device prints nothing: expected no port, got {given!r}")
    broken = _block("mlx5_0", ("Active", "LinkUp", "fast", "InfiniBand"))
    for text, line, what in (
        (output("ibstat_panic").text, "ibpanic", "the last line of a recorded output is an error"),
        (broken, "fast", "a Rate that is no number"),
        *(
            (_without(name, all_ports), "", f"{which} port without a {name}")
            for name in ("State", "Physical state", "Rate", "Link layer")
            for which, all_ports in (("a", True), ("a second", False))
        ),
        (f"ibpanic: no driver\n{output('ibstat').text}", "ibpanic", "the first line is an error"),
        ("ibpanic: no driver\n", "ibpanic", "the only line is an error"),
    ):
        _expect_refused(parts.ibstat, text, line, what)


def _without(name: str, all_ports: bool) -> str:
    """One port without this field; else two, of which only the second one has none."""
    whole = output("ibstat").text
    lines = whole.splitlines(keepends=True)
    less = "".join(line for line in lines if not line.strip().startswith(f"{name}:"))
    return less if all_ports else whole + less


def _expect_refused(parse: Any, text: str, line: str, what: str) -> None:
    try:
        given = parse(text)
    except ValueError as error:
        if line not in str(error):
            raise Wrong(f"{what}: the ValueError does not show the line: {error}") from None
        return
    raise Wrong(f"{what}, and ibstat returns {described(given)}: expected a ValueError")


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
        Step("one port", ("ibstat",), _one),
        Step("several devices and ports", ("ibstat",), _several),
        Step("ports that are down", ("ibstat",), _down),
        Step("what it can't read", ("ibstat",), _unreadable),
    ),
)
