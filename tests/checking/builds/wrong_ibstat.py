"""Parsers of ibstat that the check must refuse: (what was thought, answer, words)."""

import re
from dataclasses import replace

from course_lib.clinic import ports
from course_lib.clinic.ports import Port


def _named(function):
    function.__name__ = "ibstat"
    return function


def _changed(**changes):
    """The course's own, with some fields computed otherwise."""

    @_named
    def ibstat(text):
        found = ports.ibstat(text)
        return tuple(
            replace(p, **{name: change(p) for name, change in changes.items()}) for p in found
        )

    return ibstat


@_named
def first_only(text):
    return ports.ibstat(text)[:1]


@_named
def one_port_a_device(text):
    found = {}
    for port in ports.ibstat(text):
        found.setdefault(port.device, port)
    return tuple(found.values())


@_named
def device_of_the_last(text):
    """Makes all ports at the end, when the last device's name is known."""
    found = ports.ibstat(text)
    return tuple(replace(port, device=found[-1].device) for port in found)


@_named
def dicts(text):
    return [vars(port) for port in ports.ibstat(text)]


@_named
def skips_what_it_cannot_read(text):
    return by_lines(text, strict=False)


@_named
def keeps_the_last_rate(text):
    """A field that is missing is that of the port before."""
    last = re.findall("Rate: (.*)", text)[:1]
    parts = re.split(r"(?=Port \d+:)", text)
    filled = [p if "Rate" in p or not p.startswith("Port ") else f"{p}\tRate: {last[0]}\n"
              for p in parts] if last else parts  # fmt: skip
    return ports.ibstat("".join(filled))


@_named
def believes_the_beginning(text):
    """What stands before the first device is no concern."""
    return ports.ibstat(text[text.find("CA ") :] if "CA " in text else "")


@_named
def silent_error(text):
    try:
        return ports.ibstat(text)
    except ValueError:
        return ()


@_named
def another_error(text):
    try:
        return ports.ibstat(text)
    except ValueError:
        raise ValueError("cannot be read") from None


@_named
def refuses_nothing(text):
    if not text:
        return None
    return ports.ibstat(text)


@_named
def first_word(text):
    """Takes the second field of a line for its value: 'Physical state: LinkUp'."""
    return by_lines(text, words=True)


def by_lines(text, strict=True, words=False):
    """A state machine over the lines."""
    found, device, port = [], "", {}

    def close():
        if port:
            rate = port["Rate"]
            found.append(
                Port(
                    device,
                    port["number"],
                    port["Physical state"] if words else port["State"],
                    port["Physical state"],
                    float(rate),
                    link_layer=port["Link layer"],
                )
            )
            port.clear()

    for line in text.splitlines():
        if match := re.match(r"CA '(.+)'", line):
            close()
            device = match[1]
        elif match := re.match(r"\s+Port (\d+):", line):
            close()
            port["number"] = int(match[1])
        elif line[:1].isspace() and ": " in line:
            name, _, value = line.strip().partition(": ")
            port |= {name: value} if port else {}
        elif strict and line.strip():
            raise ValueError(f"cannot read {line!r}")
    try:
        close()
    except KeyError as error:
        raise ValueError(f"a port of {device} has no {error}") from None
    return found


WRONG = [
    ("the first port", first_only, r"step 2 of 4.*found 1 ports, expected 4"),
    ("one port a device", one_port_a_device, "one device with two ports: found 1 ports"),
    ("the last device's name", device_of_the_last, "device is 'mlx5_3', and the text says"),
    ("dicts", dicts, "each part wants to be a Port, got dict"),
    ("the port as text", _changed(port=lambda p: str(p.port)), "port wants an int, got str '1'"),
    ("the rate as text", _changed(gbit_per_s=lambda p: f"{p.gbit_per_s}"), "wants a number"),
    ("no link layer", _changed(link_layer=lambda p: None), "link_layer is missing"),
    ("state from the physical state", first_word, "state is 'LinkUp', and the text says"),
    ("whole rates", _changed(gbit_per_s=lambda p: int(p.gbit_per_s)), "gbit_per_s is 2, and"),
    ("a message as a port less", skips_what_it_cannot_read, "is an error, and ibstat returns"),
    (
        "believes the beginning",
        believes_the_beginning,
        "first line is an error, and ibstat returns",
    ),
    ("the last rate", keeps_the_last_rate, "a second port without a Rate, and ibstat returns"),
    ("nothing instead of an error", silent_error, "expected a ValueError"),
    ("an error without the line", another_error, "does not show the line: cannot be read"),
    ("None for no device", refuses_nothing, "expected no port, got None"),
]


@_named
def by_state_machine(text):
    return by_lines(text)


RIGHT = [("line by line, in a list", by_state_machine)]
