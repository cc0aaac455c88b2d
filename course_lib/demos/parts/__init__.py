"""What the programs in `course_lib.demos` are made of and share."""
