"""How fast a chip works, what slows it down, and what it costs."""
