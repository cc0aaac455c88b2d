"""The launcher by hand as a command, in torchrun's place: `by_hand RANKS PARTS MODULE ARGUMENT …`.

python -m …launchers.by_hand 2 course …demos.toy
"""

import sys

from course_lib import mine

NAMES = mine.BY_FILE["launcher"].names


def main(ranks: str, parts: str, *module: str) -> int:
    """Start the module on every rank; 0, or 1 and the ranks' exit codes where one failed."""
    codes = mine.get("launch_ranks", parts)([sys.executable, "-m", *module], int(ranks))
    if any(codes):
        print(f"exit codes by rank: {codes}", file=sys.stderr)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
