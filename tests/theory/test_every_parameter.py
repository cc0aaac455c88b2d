"""Every parameter of every public function changes some result, and none lets nonsense through.

The modules of the theory are found by looking, and so are their test files. The calls are in PROBES
and RECORDS there, as probes.py explains, or follow from names and types, by examples.py; what is
refused is in REFUSED there, see refused.py.
"""

import dataclasses
import inspect
import math
import re
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from every import every
from examples import completed, derived
from hypothesis import given
from hypothesis import strategies as st
from probes import Probe
from refused import accepted, rows

from course_lib import chapters, theory, validation

TESTS = Path(__file__).parents[1]
THEORY = Path(theory.__file__).parent
TABLE = re.compile(r"^(PROBES|RECORDS|REFUSED) = ", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Module:
    """A module of the theory, with the test file that belongs to it."""

    source: Path
    test_file: Path

    @property
    def name(self):
        parts = self.source.relative_to(THEORY.parent.parent).with_suffix("").parts
        return ".".join(parts).removesuffix(".__init__")

    def public(self):
        return dict(public_callables(import_module(self.name)))

    def table(self, name):
        """PROBES, RECORDS or REFUSED of the test file; nothing where there is none."""
        if not self.test_file.exists():
            return {}
        return getattr(import_module(self.test_file.stem), name, {})

    @cache  # noqa: B019  (a module lives as long as the tests)
    def probes(self):
        """The probes of the test file, and those that follow from names and types."""
        probes = {name: completed(probe) for name, probe in self.table("PROBES").items()}
        records = self.table("RECORDS")
        for name in self.public():
            if name in probes or name in records:
                continue
            owner, _, own_name = name.rpartition(".")
            of = import_module(self.name)
            if owner in records:
                of = records[owner][0]
            elif owner in probes:
                of = probes[owner].call(**probes[owner].base)
            elif owner:
                continue
            if probe := derived(getattr(of, own_name)):
                probes[name] = probe
        return probes


@cache
def modules():
    """All modules; a room whose `__init__` has functions is asked through these alone."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    found = []
    for room in sorted(path.parent for path in THEORY.glob("*/__init__.py")):
        is_door = "\ndef " in (room / "__init__.py").read_text(encoding="utf-8")
        sources = sorted(room.glob("*.py"))
        for source in [room / "__init__.py"] if is_door else sources[1:]:
            stem = f"test_{room.name if is_door else source.stem}"
            test_file = TESTS / "theory" / room.name / f"{stem}.py"
            # Test files have no packages: where another test has the name, ours gets a suffix.
            if names[test_file.name] > test_file.exists():
                test_file = test_file.with_stem(f"{stem}_theory")
            found.append(Module(source, test_file))
    return found + list(arithmetic_of_chapters())


def arithmetic_of_chapters():
    """The modules of chapters whose own test file has one of the tables."""
    for source in chapters.files("[a-z]*.py").values():
        room = TESTS / "chapters" / source.parent.name
        for test_file in (room / f"test_{source.stem}.py", room / f"test_{source.stem}_theory.py"):
            if test_file.exists() and TABLE.search(test_file.read_text(encoding="utf-8")):
                yield Module(source, test_file)


def public_callables(module):
    """Functions and records of a module, and methods that take something, with parameters."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        is_class = inspect.isclass(value)
        is_record = is_class and (dataclasses.is_dataclass(value) or issubclass(value, tuple))
        if is_record or inspect.isfunction(value):
            yield name, list(inspect.signature(value).parameters)
        for method_name, method in vars(value).items() if is_class else ():
            if inspect.isfunction(method) and not method_name.startswith("_"):
                _, *parameters = inspect.signature(method).parameters
                if parameters:
                    yield f"{name}.{method_name}", parameters


def missing(module, public, probes, records):
    """One sentence for each function without a probe, and for each probe without a function."""
    where = module.test_file.relative_to(TESTS.parent)
    source = module.source.relative_to(THEORY.parent.parent)
    sentences = [
        f"{name} of {source} has no probe: write one into PROBES of {where}, or its results into "
        "RECORDS"
        for name in public
        if name not in probes and name not in records
    ]
    for name in sorted({*probes, *records} - set(public)):
        sentences.append(f"{where} has a probe of {name}, which {source} does not have: remove it")
    for name in sorted(set(probes) & set(records)):
        sentences.append(f"{name} is in PROBES and in RECORDS of {where}: remove one")
    for name, probe in probes.items():
        for parameter in sorted(probe.parameters() ^ set(public.get(name, probe.parameters()))):
            sentences.append(
                f"{name} of {source} and its probe differ in parameter {parameter!r}: mention it "
                f"in {where} if the function has it, or remove it"
            )
    return sentences


def all_probes():
    """Every probe with its module and name."""
    return [
        (f"{module.source.parent.name}.{module.source.stem}.{name}", probe)
        for module in modules()
        for name, probe in module.probes().items()
    ]


def test_every_public_function_has_a_probe_that_names_all_its_parameters():
    sentences = [
        sentence
        for it in modules()
        for sentence in missing(it, it.public(), it.probes(), it.table("RECORDS"))
    ]
    assert not sentences, "\n".join(sentences)


def test_every_parameter_changes_some_result_and_every_silent_one_changes_none():
    found = {name: wrong for name, probe in all_probes() if (wrong := probe.wrong())}
    assert not found, f"these change nothing (or something, though they are `silent`): {found}"


def test_every_field_of_a_result_takes_different_values():
    fixed = [
        f"{name}.{field} of {module.source.name}"
        for module in modules()
        for name, results in module.table("RECORDS").items()
        for field in module.public()[name]
        if len({str(getattr(result, field)) for result in results}) == 1
    ]
    assert not fixed, f"the same in all RECORDS: {fixed}"


def test_what_is_refused_is_refused_in_its_own_words():
    tables = {module.test_file.name: module.table("REFUSED") for module in modules()}
    wrong = [f"{name}: {said}" for name, table in tables.items() for said in accepted(table)]
    assert not wrong, "\n".join(wrong)


def test_a_bad_number_is_refused_in_one_sentence_or_harms_nothing():
    harm = [f"{name}: {sentence}" for name, probe in all_probes() for sentence in harmed(probe)]
    assert not harm, "\n".join(harm)


JUNK = (math.nan, math.inf, -math.inf, -1, 0, 0.5, 10**30, 1e300)


def harmed(probe):
    """What goes wrong when a number is nonsense."""
    for parameter, arguments in probe.numbers():
        for junk in JUNK:
            try:
                result = probe.call(**arguments | {parameter: junk})
            except ValueError as error:
                words = str(error)
                if ": " not in words or "\n" in words:
                    yield f"{parameter} {junk} is refused by {words!r}"
                continue
            for number in numbers_in(probe.see(result) if probe.see else result):
                if not math.isfinite(number) or (number < 0 and not probe.signed):
                    yield f"{parameter} {junk} gives {number}"


def numbers_in(result):
    """All numbers of a result, however deep."""
    if isinstance(result, int | float):
        yield result
    elif isinstance(result, dict):
        yield from numbers_in(list(result.values()))
    elif isinstance(result, list | tuple):
        for item in result:
            yield from numbers_in(item)
    elif dataclasses.is_dataclass(result):
        yield from numbers_in([getattr(result, leaf.name) for leaf in dataclasses.fields(result)])


# --- these tests can fail ---


def size_of(size, unit="GB"):
    """Checks its unit, and ignores it."""
    validation.choice("unit", unit, ("GB", "GiB"))
    return size


def test_a_parameter_that_is_validated_and_ignored_is_found():
    arguments = {"size": 1}, {"size": 2, "unit": "GiB"}
    assert Probe(size_of, *arguments).wrong() == ["unit"]
    assert Probe(size_of, *arguments, silent=("unit",)).wrong() == []
    assert Probe(size_of, *arguments, silent=("size", "unit")).wrong() == ["size"]
    assert derived(size_of) is None
    assert derived(lambda stage, chunk=0: stage + chunk).changes == {"stage": 1, "chunk": 1}


def test_a_number_that_slips_through_is_found():
    found = list(harmed(Probe(size_of, {"size": 1}, {"size": 2})))
    assert len(found) == 4 and "size nan gives nan" in found and "size -1 gives -1" in found


def test_what_is_missing_is_said_with_the_file_to_write_it_into():
    test_file = TESTS / "theory" / "network" / "test_traffic.py"
    module = Module(THEORY / "network" / "traffic.py", test_file)
    probe = Probe(size_of, {"size": 1}, {"size": 2})
    assert missing(module, {"size_of": ["size"]}, {"size_of": probe}, {}) == []
    for public, probes, words in (
        (["size"], {}, "PROBES of tests/theory/network/test_traffic.py, or its results into"),
        (["size", "unit"], {"size_of": probe}, "differ in parameter 'unit'"),
        (None, {"size_of": probe}, "has a probe of size_of, which"),
    ):
        (sentence,) = missing(module, {"size_of": public} if public else {}, probes, {})
        assert words in sentence


def test_what_is_accepted_or_refused_in_other_words_is_found():
    found = accepted([*rows(int, [("x", "invalid literal"), ("1", "y"), ("z", "y")]), (dict, "w")])
    assert [each.partition(":")[0] for each in found] == ["row 1, 'y'", "row 2, 'y'", "row 3, 'w'"]
    assert len(accepted(rows(int, ["1", "x"], "invalid literal"))) == 1


def test_all_cases_run_and_the_message_names_those_that_fail():
    seen = []

    @every(("a", "b"), [(1, 2), (3, 4)])
    def both(a, b):
        seen.append((a, b))
        assert a != 3, "three"

    with pytest.raises(AssertionError, match="1 of 2 cases failed") as failure:
        both()
    assert seen == [(1, 2), (3, 4)]
    assert "{'a': 3, 'b': 4}: AssertionError: three" in str(failure.value)
    with pytest.raises(AssertionError, match="cannot fail"):
        every("a", [])


@every("least", [1, 5])
@given(number=st.integers(5, 9))
def test_examples_are_drawn_for_each_case(least, number):
    assert number >= least


def test_all_rooms_are_found():
    sources = [module.source for module in modules()]
    rooms = {source.parent.name for source in sources if source.is_relative_to(THEORY)}
    assert rooms == {path.parent.name for path in THEORY.glob("*/__init__.py")} and len(rooms) == 9
    in_chapters = [source for source in sources if not source.is_relative_to(THEORY)]
    assert len({source.parent for source in in_chapters}) > 5
    doors = [source for source in sources if source.stem == "__init__"]
    assert doors == [THEORY / "planner" / "__init__.py"]


def test_every_test_file_of_a_room_belongs_to_a_module():
    files = set((TESTS / "theory").glob("*/test_*.py"))
    known = {module.test_file for module in modules()}
    stray = {path.name for path in files - known if not path.stem.endswith("_against_torch")}
    assert not stray, f"no module of the theory has this name: {stray}"
    assert {path for path in known if path.parent.parent.name == "theory"} <= files
