"""The reading style is a whole extension for JupyterLab, and its settings are real ones."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.lab.start import SETTINGS, STYLE, command

SCHEMAS = Path(sys.prefix) / "share" / "jupyter" / "lab" / "schemas"
EXTENSIONS = Path(sys.prefix) / "share" / "jupyter" / "labextensions"
OVERRIDES = json.loads((SETTINGS / "overrides.json").read_text())
CSS = (STYLE / "course-style" / "static" / "style.css").read_text()


def test_jupyterlab_finds_the_extension_and_its_files():
    from jupyterlab_server.config import get_page_config  # 0.3 s, which no other test needs

    assert f"--LabApp.extra_labextensions_path={STYLE}" in command(Path(), None, True)
    (found,) = get_page_config([str(STYLE)])["federated_extensions"]
    script = (STYLE / found["name"] / found["load"]).read_text()
    assert f"window._JUPYTERLAB['{found['name']}']" in script and found["style"] == "./style"
    for name in re.findall(r"'(\w+\.css)'", script):
        assert (STYLE / found["name"] / found["load"]).with_name(name).is_file()


@pytest.mark.parametrize("plugin", OVERRIDES)
def test_each_setting_is_one_that_jupyterlab_knows_and_a_new_default(plugin, tmp_path):
    from jupyterlab_server.settings_utils import get_settings

    assert f"--LabApp.app_settings_dir={SETTINGS}" in command(Path(), None, True)
    assert "theme" not in plugin  # which is the learner's
    found, _ = get_settings(
        str(SETTINGS),
        str(SCHEMAS),
        str(tmp_path),
        schema_name=plugin,
        overrides=OVERRIDES,
        labextensions_path=[str(EXTENSIONS)],
    )
    for name, value in OVERRIDES[plugin].items():
        known = found["schema"]["properties"][name]
        assert known["default"] == value
        choices = [choice["const"] for choice in known.get("oneOf", [])] + known.get("enum", [])
        assert "enum" in known or type(value).__name__[:3] == known["type"][:3]
        assert value in choices or value in (0, 1)


def test_colours_are_the_themes():
    assert not re.search(r"#[0-9a-f]{3,8}\b|\brgb|\b(white|black)\b", CSS)


def test_git_and_so_the_wheel_take_these_files_along():
    """A wheel holds what stands in course_lib/ and git does not ignore."""
    files = [str(path) for path in (*STYLE.rglob("*"), *SETTINGS.rglob("*")) if path.is_file()]
    assert len(files) == 4
    asked = subprocess.run(["git", "check-ignore", *files], cwd=STYLE, capture_output=True)
    if asked.returncode == 128:
        pytest.skip("no git clone")
    assert asked.stdout == b""
