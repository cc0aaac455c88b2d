"""Wrong versions of the builds of chapters 10 to 17 are told what is wrong."""

from tests.checking.builds.refusals import LATE, expect_refusal, of_chapters


@of_chapters(LATE)
def test_a_wrong_version_is_told_what_is_wrong(build, answer, words):
    expect_refusal(build, answer, words)
