"""Demos are found in their folder, and one entry point makes programs of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_lib import demos
from course_lib.demos.ddp import Options
from course_lib.demos.shared.options import DemoOptions, TrainingOptions
from course_lib.demos.shared.text import VOCAB, Windows, load_text

FOLDER = Path(demos.__file__).parent
ROOMS = FOLDER.parent / "chapters"
# What trains no model of its own.
WITHOUT_TRAINING = {
    "samples",
    "collectives",
    "faults",
    "largest_batch",
    "pairwise",
    "prefetch",
    "toy",
    "wrappers",
}


def test_the_list_is_what_lies_in_the_folder():
    assert {"ddp", "tp", "zero", "hybrid"} <= set(demos.DEMOS)
    assert not {"shared", "__init__", "__main__"} & set(demos.DEMOS)
    assert list(demos.DEMOS) == sorted(demos.DEMOS)
    entries = {path.stem for path in FOLDER.iterdir() if path.name[0] not in "_."}
    in_rooms = {path.stem for path in ROOMS.glob("*/demos/[a-z]*")}
    assert set(demos.DEMOS) == entries - {"shared"} | in_rooms
    readme = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"\nThe demos are {len(demos.DEMOS)} programs" in readme


def test_every_demo_has_the_same_face():
    for name, line in demos.DEMOS.items():
        program = demos.load(name)
        first = program.__doc__.partition("\n")[0]
        assert first == f"{line}." and line, f"{name}: the first line is {first!r}"
        assert demos.parse(name, []) == program.Options(), name
        assert callable(program.main), name
        assert issubclass(program.Options, DemoOptions), name
        trains = issubclass(program.Options, TrainingOptions)
        assert trains == (name not in WITHOUT_TRAINING), name


def test_the_list_is_light():
    code = "import sys; from course_lib import demos; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fields_become_arguments():
    argv = ["--micro-batch", "3", "--no-no-sync", "--learning-rate", "0.5"]
    assert demos.parse("ddp", argv) == Options(micro_batch=3, no_sync=False, learning_rate=0.5)


def test_a_bad_argument_ends_with_code_2_and_a_sentence(capsys):
    for argv in (["--steps", "0"], ["--steps", "x"], ["--nonsense"]):
        with pytest.raises(SystemExit) as ended:
            demos.parse("ddp", argv)
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert "course demo ddp: " in said.splitlines()[-1]


def test_an_unknown_demo_gets_the_nearest_name():
    for ask in (demos.run, demos.load, lambda name: demos.parse(name, [])):
        with pytest.raises(ValueError, match="did you mean 'ddp'"):
            ask("dpd")


def test_the_text_is_ascii_and_windows_overlap_by_the_label():
    text = load_text()
    assert int(text.max()) < VOCAB
    windows = Windows(sequence=64)
    inputs, labels = windows[3]
    assert torch.equal(inputs, text[192:256])
    assert torch.equal(labels, text[193:257])
    assert torch.equal(windows.batch([5, 3])[1][1], labels)
    assert len(windows) == (len(text) - 1) // 64
    with pytest.raises(IndexError, match="outside 0 to"):
        windows[len(windows)]
