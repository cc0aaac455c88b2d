"""Keeps every test run away from the progress of whoever runs it."""

import atexit
import os
import shutil
import tempfile

_home = tempfile.mkdtemp(prefix="course-test-")
os.environ["COURSE_HOME"] = _home
atexit.register(shutil.rmtree, _home, ignore_errors=True)
