"""A trace: what is held, what is sent, what takes time; on cases that can be checked by hand."""

from course_lib.trace import ADD, COPY, FREE, SEND, TAKE, Event, Held, Total, Trace

TWO = Trace(
    [
        Event(2, 1, COPY, "a", to=0, bytes=8),
        Event(0, 0, TAKE, "a", bytes=8),
        Event(0, 1, TAKE, "a", bytes=8),
        Event(1, 0, ADD, "a", to=1, bytes=8),
        Event(3, 0, FREE, "a"),
    ]
)


def test_events_are_in_the_order_of_their_beginning():
    assert [event.at for event in TWO] == [0, 0, 1, 2, 3]
    assert TWO.who == (0, 1) and TWO.times == (0, 1, 2, 3)
    assert TWO.at(2) == (Event(2, 1, COPY, "a", to=0, bytes=8),)


def test_messages_add_or_take_the_place():
    assert TWO.held(0)[1] == {"a": Held((1,), 8)}
    assert TWO.held(1)[1] == {"a": Held((0, 1), 8)}
    assert TWO.held(1)[0] == {"a": Held((0,), 8)}
    assert TWO.held(2)[0] == {"a": Held((0, 1), 8)}
    assert TWO.held(3)[0] == {}


def test_messages_of_one_time_travel_at_once():
    both = Trace(
        [Event(0, who, TAKE, "a") for who in (0, 1)]
        + [Event(1, who, COPY, "a", to=1 - who) for who in (0, 1)]
    )
    assert [both.held(1)[who]["a"].of for who in (0, 1)] == [(1,), (0,)]


def test_a_message_arrives_when_it_is_over():
    slow = Trace([Event(0, 0, TAKE, "a", bytes=4), Event(1, 0, COPY, "a", 1, 4, end=3)])
    assert slow.held(2.9)[1] == {} and slow.held(3)[1] == {"a": Held((0,), 4)}
    assert slow.running(2.9) and not slow.running(3)
    assert slow.lanes() == {"0": (slow[1],)}
    assert slow.times == (0, 1, 3)


def test_sent_is_what_a_log_of_the_wire_counts():
    assert TWO.sent() == {SEND: Total(2, 16)}
    assert TWO.sent(0) == {SEND: Total(1, 8)} and TWO.sent(0, until=0) == {}
    calls = Trace([Event(step, 0, "all-gather", bytes=100) for step in range(3)])
    assert calls.sent(0) == {"all-gather": Total(3, 300)} and calls.sent(1) == {}
    assert TWO.messages(0) == ((SEND, 1, 8),)


def test_peak_and_levels_follow_every_change():
    memory = Trace(
        [
            Event(0, 0, TAKE, "weights", bytes=10),
            Event(1, 0, TAKE, "gathered", bytes=30),
            Event(2, 0, FREE, "gathered"),
            Event(2, 0, TAKE, "gathered", bytes=25),
            Event(3, 0, FREE, "gathered"),
        ]
    )
    assert memory.levels(0) == ((0, 10), (1, 40), (2, 35), (3, 10))
    assert memory.peak(0) == 40 and memory.peak(7) == 0
    late = Trace([Event(0, 0, TAKE, "a", bytes=1), Event(0, 0, TAKE, "b", bytes=2)])
    assert late.peak(0) == 3 and Trace().levels(0) == ()
