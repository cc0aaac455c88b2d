"""Pipeline schedules in time: orders of passes, timelines and bubbles."""
