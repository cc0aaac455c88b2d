"""Events of several processes, laid side by side."""

import time

from course_lib.chapters.ch14_parameter_servers.events import Event, EventLog, in_order


def test_events_have_the_time_of_the_wall_clock_and_keep_their_order():
    log = EventLog("a")
    before = time.time()
    log.mark("begins")
    log.mark("ends")
    assert [(it.process, it.what) for it in log.events] == [("a", "begins"), ("a", "ends")]
    assert before <= log.events[0].at_s <= log.events[1].at_s <= time.time()


def test_processes_are_merged_by_time_from_a_moment_on():
    events = [Event("a", "late", 12.0), Event("a", "early", 9.0), Event("b", "between", 10.5)]
    assert in_order(events, since_s=10.0) == [Event("b", "between", 0.5), Event("a", "late", 2.0)]
