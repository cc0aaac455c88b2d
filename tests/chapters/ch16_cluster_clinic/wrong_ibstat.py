"""Parsers of ibstat that the check must refuse, as patches of a right one by another hand."""

import re
from dataclasses import replace

from course_lib.clinic.ports import Port
from tests.checking.builds.patches import versions

__all__ = ["replace"]  # for a patch


def ibstat(text):
    """A state machine over the lines."""
    found, device, port = [], "", {}

    def close():
        if port:
            rate = port["Rate"]
            found.append(
                Port(
                    device,
                    port["number"],
                    port["State"],
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
        elif line.strip():
            raise ValueError(f"cannot read {line!r}")
    try:
        close()
    except KeyError as error:
        raise ValueError(f"a port of {device} has no {error}") from None
    return found


RIGHT = [("line by line, in a list", ibstat)]
WRONG = versions(
    ibstat,
    lambda parse: parse,
    """
the first port
- return found
+ return found[:1]
? 2 has 1 parts, expected 4
one port a device
+ return list({port.device: port for port in reversed(found)}.values())[::-1]
? one device with two ports has 1 parts, expected 2
the last device's name
+ return [replace(port, device=device) for port in found]
? device is 'mlx5_3': expected another
dicts
+ return [vars(port) for port in found]
? part 1 wants a Port, got dict
None for no device
+ return found if text else None
? expected no port, got None
the port as text
- int(match[1])
+ match[1]
? port wants a whole number, got str '1'
the rate as text
- float(rate)
+ rate
? wants a number
whole rates
+ int(float(rate))
? gbit_per_s is 2: too small
no link layer
- link_layer=port["Link layer"]
+ **{}
? link_layer is missing
state from the physical state
- port["State"]
+ port["Physical state"]
? state is str 'LinkUp', which is physical
a message as a port less
- raise ValueError(f"cannot read {line!r}")
+ pass
? is an error, and ibstat returns
an error without the line
+ raise ValueError("cannot be read")
? does not show the line: cannot be read
nothing instead of an error
+ return []
- raise ValueError(f"a port of {device} has no {error}") from None
+ return []
? expected a ValueError
believes the beginning
- text.splitlines()
+ text[max(text.find("CA "), 0) :].splitlines()
? first line is an error, and ibstat returns
the last rate
- rate = port["Rate"]
+ rate = port.get("Rate", found[-1].gbit_per_s) if found else port["Rate"]
? a second port without a Rate, and ibstat returns
""",
)
