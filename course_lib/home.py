"""The folder of the learner's own data, outside of the repository."""

import os
from pathlib import Path


def home() -> Path:
    """The learner's data folder: COURSE_HOME, else a folder in the user's data directory."""
    if folder := os.environ.get("COURSE_HOME"):
        return Path(folder).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("large-model-course"))
