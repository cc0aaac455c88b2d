"""Prints the lowest version that pyproject.toml allows of each package, as constraints for pip.

python .ci/lowest.py > lowest.txt && PIP_CONSTRAINT=lowest.txt .ci/run
"""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
for requirement in wanted:
    lowest = re.fullmatch(r"([\w-]+)[>=]=([\w.]+)(,<\w+.*)?", requirement)
    assert lowest, f"{requirement}: write it like name>=1.2,<3"
    print(f"{lowest[1]}=={lowest[2]}")
