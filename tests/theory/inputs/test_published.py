"""Published runs: by what else their sources say about them."""

from course_lib.theory.inputs.published import LLAMA3_405B


def test_llama3_405b_has_the_gpus_and_the_tokens_of_its_table():
    # arXiv:2407.21783, table 4: 16,384 GPUs, 16 sequences for each replica, 16M tokens in a batch.
    layout, cluster = LLAMA3_405B.layout, LLAMA3_405B.cluster
    assert layout.world == cluster.world == 16_384
    assert layout.micro_batch * layout.accumulation == 16
    assert layout.global_batch * LLAMA3_405B.sequence == 2**24


def test_its_chunks_without_a_layer_stand_at_both_ends():
    # Section 3.3.2: one layer less on the first and on the last stage; the model has 126.
    chunks = LLAMA3_405B.layout.stage_layers
    assert len(chunks) == 16 * 8 and sum(chunks) == LLAMA3_405B.shape.layers == 126
    assert chunks[0] == chunks[-1] == 0
