"""Options from the command line, and the shipped text."""

import pytest
import torch

from course_lib.demos import DEMOS, ddp, load, samples
from course_lib.demos.shared.text import VOCAB, Windows, load_text


def test_fields_become_arguments():
    options = ddp.parse(["--micro-batch", "3", "--no-no-sync", "--learning-rate", "0.5"])
    assert (options.micro_batch, options.no_sync, options.learning_rate) == (3, False, 0.5)
    assert samples.parse([]) == samples.Options()


@pytest.mark.parametrize("argv", [["--steps", "0"], ["--steps", "x"], ["--nonsense"]])
def test_a_bad_argument_ends_with_code_2_and_a_sentence(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        ddp.parse(argv)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("name", DEMOS)
def test_every_demo_has_the_same_face(name):
    module = load(name)
    assert module.parse([]) == module.Options()
    assert callable(module.main)


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
