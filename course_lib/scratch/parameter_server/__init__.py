"""A table on servers: trainers pull rows and push their gradients."""

from course_lib.scratch.parameter_server import (
    bounded,
    messages,
    server,
    stale,
    table,
)
from course_lib.scratch.parameter_server.server import ParameterServer
from course_lib.scratch.parameter_server.table import RemoteTable

__all__ = [
    "ParameterServer",
    "RemoteTable",
    "bounded",
    "messages",
    "server",
    "stale",
    "table",
]
