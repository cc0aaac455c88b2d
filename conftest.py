"""Keeps every test run away from the progress of whoever runs it."""

import os
import tempfile

os.environ["COURSE_HOME"] = tempfile.mkdtemp(prefix="course-test-")
