"""How long one rank of a large job takes to rehearse, and how much memory that needs.

    python benchmarks/rehearsal_times.py

Each in a process of its own, by `course rehearse`; the times are of the processor, so that what
else runs on the machine does not count.
"""

import json
import subprocess
import sys

CASES = (
    "gpt2-124m --dp 8",
    "llama2-7b --dp 64 --tp 8 --rank 511",
    "llama2-7b --dp 1024 --rank 1023",
    "llama2-70b --dp 128 --tp 8 --rank 1023",
    "llama2-70b --dp 128 --tp 8 --rank 1023 --sequence-parallel",
    "llama2-70b --dp 128 --tp 8 --shard-group 16 --rank 0",
)
CODE = """
import resource, sys
from course_lib import cli
code = cli.main(["rehearse", *sys.argv[1:], "--json"])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
KIB = 1024  # the unit of ru_maxrss on Linux


def main() -> None:
    """A line for each case."""
    print("| rank | processor time | memory | calls | differences, all named |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for case in sys.argv[1:] or CASES:
        command = [sys.executable, "-c", CODE, *case.split()]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, most = (float(number) for number in ended.stderr.split()[-2:])
        found = json.loads(ended.stdout)
        assert found["explained"], case
        calls = sum(line["rehearsed"]["calls"] for line in found["lines"])
        named = sum(len(line["differences"]) for line in found["lines"])
        memory = most * KIB / 1e9
        print(f"| `{case}` | {seconds:.0f} s | {memory:.2f} GB | {calls:,} | {named} |", flush=True)


if __name__ == "__main__":
    main()
