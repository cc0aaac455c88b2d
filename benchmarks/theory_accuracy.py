"""Published numbers against this library, its peers and the usual short formulas.

    python benchmarks/theory_accuracy.py [--peer-python PYTHON] [--megatron CHECKOUT] [--cases]

`--peer-python`: a Python that has llm-analysis. `--megatron`: a checkout of Megatron-LM, whose own
functions are run. What is absent is said and left out. An error is |answer / published - 1|.
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from peer_megatron import Megatron
from theory_answers import CannotError, Ours, Short
from theory_cases import Case, cases

Answers = list[float | str]  # a number, or why there is none


@dataclass(frozen=True)
class Row:
    """How one tool does on the cases of one category."""

    answered: int
    within: int
    median: float | None
    worst: float | None
    worst_case: str

    @classmethod
    def of(cls, these: list[Case], answers: Answers) -> "Row":
        errors = {
            case: abs(case.error(answer))
            for case, answer in zip(these, answers, strict=True)
            if not isinstance(answer, str)
        }
        if not errors:
            return cls(0, 0, None, None, "")
        worst = max(errors, key=errors.__getitem__)
        within = sum(error <= case.tolerance for case, error in errors.items())
        median = statistics.median(errors.values())
        return cls(len(errors), within, median, errors[worst], worst.id)


def ask(tool: Ours | Short | Megatron, questions: list[dict]) -> Answers:
    """The answers of a tool that runs in this Python."""
    answers: Answers = []
    for question in questions:
        try:
            answers.append(getattr(tool, question["kind"])(question))
        except CannotError as reason:
            answers.append(f"cannot: {reason}")
    return answers


def ask_peer(python: Path, questions: list[dict], name: str = "llm-analysis") -> Answers:
    """The answers of a peer, in its own Python."""
    script = Path(__file__).with_name(f"peer_{name.lower().replace('-', '_')}.py")
    done = subprocess.run(
        [python, script],
        input=json.dumps(questions),
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{python} failed, see above: install {name} and what it needs there")
    return [a.get("value", f"cannot: {a.get('cannot')}") for a in json.loads(done.stdout)]


def peers(parser: argparse.ArgumentParser) -> None:
    """The two options that name the peers."""
    parser.add_argument("--peer-python", type=Path, help="a Python that has llm-analysis")
    parser.add_argument("--megatron", type=Path, help="a checkout of Megatron-LM")


def say_absent(options: argparse.Namespace) -> None:
    """Say on standard error which peers are left out; end if one is not where it should be."""
    for peer, option in {"llm-analysis": "peer_python", "Megatron-LM": "megatron"}.items():
        path, name = getattr(options, option), "--" + option.replace("_", "-")
        if path is None:
            print(f"{peer} is absent: give {name} to compare with it", file=sys.stderr)
        elif not path.exists():
            sys.exit(f"{name} {path} does not exist: give the path of {peer}, or leave it out")


def ask_all(options: argparse.Namespace, questions: list[dict]) -> dict[str, Answers]:
    """The answers of every tool that is here, by name."""
    answers = {"course_lib": ask(Ours(), questions)}
    if options.peer_python:
        answers["llm-analysis"] = ask_peer(options.peer_python, questions)
    if options.megatron:
        answers["Megatron-LM"] = ask(Megatron(options.megatron), questions)
    return {**answers, "short formula": ask(Short(), questions)}


def print_cases(these: list[Case], answers: dict[str, Answers]) -> None:
    """Every case, with the signed error of each tool."""
    print("|".join(["", "case", *answers, ""]))
    print("|".join(["", "---", *["---:"] * len(answers), ""]))
    for number, case in enumerate(these):
        found = [each[number] for each in answers.values()]
        cells = [each if isinstance(each, str) else f"{case.error(each):+.3%}" for each in found]
        print("|".join(["", case.id, *cells, ""]))


def print_table(these: list[Case], answers: dict[str, Answers]) -> None:
    """One row for each category and tool."""
    print("| category | tool | answered | as printed | median error | worst error | worst case |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for category in dict.fromkeys(case.category for case in these):
        numbers = [n for n, case in enumerate(these) if case.category == category]
        asked = [these[n] for n in numbers]
        for tool, each in answers.items():
            row = Row.of(asked, [each[n] for n in numbers])
            sums = f"| {category} | {tool} | {row.answered} of {len(asked)} |"
            if row.median is None:
                print(f"{sums} | | cannot | |")
                continue
            errors = f" {row.median:.2%} | {row.worst:.2%} | {row.worst_case} |"
            print(f"{sums} {row.within} |{errors}")


def main() -> None:
    """Ask everybody everything, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    peers(parser)
    parser.add_argument("--cases", action="store_true", help="print every case as well")
    options = parser.parse_args()
    say_absent(options)
    these = cases()
    answers = ask_all(options, [case.question for case in these])
    if options.cases:
        print_cases(these, answers)
        print()
    print_table(these, answers)


if __name__ == "__main__":
    main()
