"""Keeps every test run away from the progress of whoever runs it, and makes checks strict."""

import atexit
import os
import shutil
import tempfile

_home = tempfile.mkdtemp(prefix="course-test-")
os.environ["COURSE_HOME"] = _home
os.environ["COURSE_STRICT"] = "1"  # in the notebooks that nbval runs, a failed check is an error
atexit.register(shutil.rmtree, _home, ignore_errors=True)
