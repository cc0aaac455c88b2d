"""Fault injection: the kinds of faults, and programs with one faulty rank."""
