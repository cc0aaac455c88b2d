"""Pipeline schedules: orders of passes, simulated timelines and bubbles."""
