"""A sample learner, and a picture of their report: `python …/reporting/sample.py FILE.png`.

Guesses, passed exercises and the defence are invented; what was found was recorded by running the
notebooks of chapters 0 to 15. The plan is judged and the small run is run again each time. Their
parts are copies of the course's own.
"""

import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
NAME = "a sample learner (the guesses are invented)"
BUILT = ("accumulation", "ring", "ddp", "zero", "tensor", "vocabulary", "pipeline", "mesh")
# Exercises that they passed beside three audits, by chapter, and whose solution they saw.
PASSED = """
1.1 1.3 1.4 1.5 1.6 1.7
2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 2.9
3.2 3.3 3.6 3.7 3.8 3.9 3.10
4.1 4.2 4.3 4.4 4.5 4.7 4.8
5.1 5.3 5.4 5.5 5.6 5.7 5.8 5.9 5.10
6.1 6.3 6.4 6.5 6.6 6.7 6.8 6.10
7.1 7.2 7.3 7.5 7.7 7.8
8.1 8.3 8.4 8.5 8.6 8.7 8.8 8.9 8.10
9.1 9.3 9.4 9.5 9.6 9.7
10.1 10.4 10.5 10.6 10.7 10.10
11.2 11.3 11.4 11.5 11.7 11.9 11.10
12.1 12.2 12.3 12.4 12.5 12.6
13.2 13.3 13.6 13.7
14.5 14.8
15.3 15.4 15.6 15.7
17.2 17.3
"""
SEEN = ("3.6", "5.3", "6.10", "8.1", "11.10", "14.8", "15.4")
# Two pages side by side, as a README shows them.
_PICTURE_STYLE = """<style>
body { max-width: none; width: 1500px; height: 1180px; columns: 2; column-gap: 60px;
  column-fill: auto; margin: 30px; padding: 0; overflow: hidden }
</style></head>"""


def fill(home: Path) -> None:
    """Put records, parts and words of the sample learner into a new folder `home`."""
    from course_lib import mine

    (home / "mine").mkdir(parents=True)
    (home / "report").mkdir()
    learner = json.loads((HERE / "sample_learner.json").read_text(encoding="utf-8"))
    passed = {"status": "pass", "attempts": 1, "hints": 0}
    learner["exercises"] |= {key: passed | {"seen": key in SEEN} for key in PASSED.split()}
    (home / "progress.json").write_text(json.dumps(learner), encoding="utf-8")
    shutil.copy(HERE / "sample_defence.md", home / "report" / "defence.md")
    for file in BUILT:
        part = mine.BY_FILE[file]
        modules = {mine.get(name, "course").__module__ for name in part.names}
        text = "\n".join(inspect.getsource(import_module(name)) for name in sorted(modules))
        (home / "mine" / f"{file}.py").write_text(text, encoding="utf-8")


def choose() -> None:
    """Their plan of section 17.7."""
    from course_lib.chapters.ch17_capstone.reporting import keep_plan
    from course_lib.theory import planner
    from course_lib.theory.inputs import Cluster, Layout, Recipe, hardware, models
    from course_lib.theory.step.assumptions import CAUTIOUS

    where = Cluster(hardware.accelerator("H100-SXM"), nodes=64)
    llama = models.MODELS["llama2-70b"]
    found = planner.plan(llama, Recipe(), where, 1024, sequence=4096)
    layout = Layout(
        tp=4,
        pp=2,
        dp=64,
        zero_stage=1,
        sequence_parallel=True,
        accumulation=16,
        schedule="interleaved",
        virtual_stages=6,
    )
    print(keep_plan({"optimistic": found, "cautious": found.under(CAUTIOUS)}, layout))


def build_small() -> None:
    """Their small run of section 17.8, and its time beside one process."""
    from course_lib import demos, expect, predict
    from course_lib.chapters.ch17_capstone.reporting import keep_run

    settings = {"model": "4x64x4", "sequence": 32, "batch": 8, "steps": 6, "stream": False}
    longer = predict("17.time", "Update on 8 ranks / on 1?", yours=0.5)
    eight = demos.run("three_d", ranks=8, parts="mine", micro_batches=4, **settings)
    alone = demos.run("three_d", ranks=1, **settings)
    keep_run(eight)
    ratio = eight.versions[0].seconds / alone.versions[0].seconds
    expect(1 / min(8, os.cpu_count() or 1), ratio, within=1000, yours=longer)


def picture(page: Path, target: Path) -> None:
    """The beginning of a page, as a PNG of few colours."""
    from PIL import Image

    from course_lib.lab.chromium import browser_path

    with tempfile.TemporaryDirectory() as folder:
        wide, shot = Path(folder) / "wide.html", Path(folder) / "shot.png"
        text = page.read_text(encoding="utf-8").replace("</head>", _PICTURE_STYLE)
        wide.write_text(text, encoding="utf-8")
        command = [browser_path() or "chromium", "--headless", "--no-sandbox", "--disable-gpu"]
        command += [f"--user-data-dir={folder}/profile", "--window-size=1560,1240"]
        command += [f"--screenshot={shot}", wide.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        few = Image.open(shot).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(target, optimize=True)


def main() -> None:
    """Make the sample learner, their report and its picture."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        os.environ["COURSE_HOME"] = str(home)
        fill(home)
        choose()
        build_small()
        command = [sys.executable, "-m", "course_lib", "report", "--name", NAME]
        subprocess.run(command)
        picture(home / "report" / "report.html", Path(sys.argv[1]))
        for path in sys.argv[2:]:  # for a look at all of it
            shutil.copytree(home, path)


if __name__ == "__main__":
    main()
