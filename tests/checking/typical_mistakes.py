"""Answers that learners give and a check must refuse, from mistakes_chNN.py of each chapter."""

from importlib import import_module

from course_lib.checking.exercise import chapters

ALL = [
    mistake
    for number in chapters()
    for mistake in import_module(f"tests.checking.mistakes_ch{number:02}").MISTAKES
]
