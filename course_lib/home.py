"""Where the course keeps what belongs to the learner, outside of the repository."""

import os
from pathlib import Path


def home() -> Path:
    """The learner's folder: COURSE_HOME, else the user's data folder."""
    if folder := os.environ.get("COURSE_HOME"):
        return Path(folder).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("large-model-course"))
