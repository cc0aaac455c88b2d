"""Wrong versions of the builds of chapters 2 to 9 are told what is wrong."""

from tests.checking.builds.refusals import EARLY, expect_refusal, of_chapters


@of_chapters(EARLY)
def test_a_wrong_version_is_told_what_is_wrong(build, answer, words):
    expect_refusal(build, answer, words)
