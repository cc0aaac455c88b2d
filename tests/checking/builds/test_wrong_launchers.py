"""Wrong versions of the builds of chapters 15 and 16 are told what is wrong."""

from tests.checking.builds.refusals import expect_refusal, of_chapters


@of_chapters(15, 16)
def test_a_wrong_version_is_told_what_is_wrong(build, answer, words):
    expect_refusal(build, answer, words)
