"""What NCCL_IB_HCA and NCCL_SOCKET_IFNAME choose: by prefix, unless a "=" stands before the names.

Source: NCCL's page of environment variables, and `matchIf` in its src/misc/utils.cc.
"""

from collections.abc import Sequence


def chosen(setting: str, names: Sequence[str]) -> list[str]:
    """The `names` that NCCL uses with this setting, in their order; all of them with "".

    "mlx5_1" stands for every name that begins so, "=mlx5_1" for that one alone, "^…" and "^=…" for
    all others; several are joined by commas. A port may follow the name of a device: "mlx5_1:1".
    Raises ValueError for a mark without a name.
    """
    if not setting:
        return list(names)
    rest = setting.removeprefix("^")
    exact, wanted = rest.startswith("="), rest.removeprefix("=").split(",")
    if not all(wanted):
        raise ValueError(f"setting {setting!r} has a mark or a comma without a name: name a device")
    return [
        name
        for name in names
        if any(_matches(name, one, exact) for one in wanted) != setting.startswith("^")
    ]


def _matches(name: str, wanted: str, exact: bool) -> bool:
    (device, _, port), (prefix, _, wanted_port) = name.partition(":"), wanted.partition(":")
    same = device == prefix if exact else device.startswith(prefix)
    return same and (not port or not wanted_port or port == wanted_port)
