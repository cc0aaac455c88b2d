"""Build 16.12: a parser of ibstat."""

from functools import partial
from types import SimpleNamespace

from course_lib.checking.build import build
from course_lib.checking.builds.alike import expect_alike
from course_lib.checking.builds.compare import compare_here
from course_lib.checking.builds.rows import Never, Rows
from course_lib.checking.helpers import described
from course_lib.clinic import ports
from course_lib.clinic.recorded import output

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


def _block(device: str, *states: tuple[str, str, str, str]) -> str:
    """ibstat's text for one device, from (state, physical state, rate, link layer) of each port."""
    shown = [
        _PORT.format(number=number, state=state, physical=physical, rate=rate, layer=layer)
        for number, (state, physical, rate, layer) in enumerate(states, start=1)
    ]
    return _BLOCK.format(device=device, count=len(states)) + "".join(shown)


def _port(state: str, physical: str, rate: str) -> tuple[str, str, str, str]:
    return state, physical, rate, "InfiniBand"


# The texts to parse, by step and description.
_FOUR = output("ibstat_slow").text
_TEXTS = {
    "one port": {"a recorded output with one port": output("ibstat").text},
    "several devices and ports": {
        "four devices, of which one is slow": _FOUR,
        "one device with two ports": _block(
            "mlx4_0", _port("Active", "LinkUp", "56"), ("Down", "Disabled", "10", "Ethernet")
        ),
        "a device without a port before the others": _block("mlx5_9") + _FOUR,
        "a recorded output with tabs": output("ibstat_panic").text.rpartition("ibpanic")[0],
    },
    "ports that are down": {
        "a recorded port that is down": output("ibstat_down").text,
        "a port that looks for its cable's other end": _block(
            "mlx5_0", _port("Down", "Polling", "2.5")
        ),
        "a port without a subnet manager": _block("mlx5_0", _port("Initializing", "LinkUp", "100")),
    },
}


def _read(texts: dict[str, str], parts: SimpleNamespace) -> Rows:
    for what, text in texts.items():
        expect_alike(parts.ibstat(text), ports.ibstat(text), f"ibstat of {what}")
    return ()


def _unreadable(parts: SimpleNamespace) -> Rows:
    given = parts.ibstat("")
    nothing = "a machine without a device prints nothing: expected no port"
    yield Never(given is None or len(given), f"{nothing}, got {given!r}")
    whole = output("ibstat").text
    for what, line, text in (
        ("the last line of a recorded output is an error", "ibpanic", output("ibstat_panic").text),
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
    steps=(
        *(compare_here(title, ("ibstat",), partial(_read, _TEXTS[title])) for title in _TEXTS),
        compare_here("what it can't read", ("ibstat",), _unreadable),
    ),
)
