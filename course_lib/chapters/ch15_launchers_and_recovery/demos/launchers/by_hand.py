"""The hand-written launcher as a command, a stand-in for torchrun: `by_hand RANKS PARTS MODULE …`.

python -m …launchers.by_hand 2 course …demos.toy
"""

import sys

from course_lib import mine

NAMES = mine.BY_FILE["launcher"].names


def main(ranks: str, parts: str, *module: str) -> int:
    """Start the module on every rank; returns 0, or prints the exit codes and returns 1."""
    codes = mine.get("launch_ranks", parts)([sys.executable, "-m", *module], int(ranks))
    if any(codes):
        print(f"exit codes by rank: {codes}", file=sys.stderr)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
