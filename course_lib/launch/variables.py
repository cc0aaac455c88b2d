"""The variables of the environment by which a launch and its ranks tell each other things."""

STORE_VARIABLE = "COURSE_STORE"  # set by launch.run: the file through which its ranks meet
TIMEOUT_VARIABLE = "COURSE_TIMEOUT_S"
STEPS_VARIABLE = "COURSE_STEPS"  # set by launch.run: the file that says how far this rank is
FOLDER_VARIABLE = "COURSE_RECORD"  # set by launch.run, or by hand for torchrun: where pages go
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"  # set by torchrun
