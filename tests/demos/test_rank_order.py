"""The theory's groups of ranks are those of torch's DeviceMesh and of Megatron-core."""

import pytest

from course_lib import launch
from course_lib.demos.launchers.rank_order import AXES, by_device_mesh, by_megatron
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network import mesh

LAYOUTS = [
    Layout(dp=2, tp=2, pp=2),
    Layout(dp=3, tp=4, pp=2),
    Layout(dp=2, tp=2, pp=2, cp=2),
    Layout(dp=1, tp=8, pp=3, cp=2),
    Layout(dp=8, tp=8, pp=16),
]


def tables():
    """On a rank of its own: this process has no group yet."""
    launch.finish()
    return {(n, axis): by_device_mesh(one, axis) for n, one in enumerate(LAYOUTS) for axis in AXES}


def test_device_mesh_has_the_same_groups():
    found = launch.run(tables, ranks=1, stream=False)[0]
    assert len(found) == 4 * len(LAYOUTS)
    for (number, axis), groups in found.items():
        assert groups == mesh.groups(LAYOUTS[number], axis), (LAYOUTS[number], axis)


@pytest.mark.engine("megatron")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_megatron_core_has_the_same_groups(layout):
    for axis in AXES:
        assert by_megatron(layout, axis) == mesh.groups(layout, axis), axis
