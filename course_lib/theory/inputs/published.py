"""Published training runs that several parts of the course use."""

from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe

# Llama 3 405B on 16,384 H100 (arXiv:2407.21783, table 4 and section 3.3.2): 128 chunks, of which
# the first has only the embedding and the last only the head; 16 stages of eight chunks each.
LLAMA3_405B = Job(
    MODELS["llama3.1-405b"],
    Recipe(gradients="fp32", fused_accumulation=True, fused_swiglu=True),
    Layout(
        tp=8,
        pp=16,
        dp=128,
        accumulation=16,
        zero_stage=1,
        sequence_parallel=True,
        schedule="interleaved",
        virtual_stages=8,
        stage_layers=(0, *[1] * 126, 0),
    ),
    Cluster(accelerator("H100-SXM"), nodes=2048),
    sequence=8192,
)
