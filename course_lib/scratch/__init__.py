"""From-scratch implementations of each technique, one file per parallelism."""

import course_lib.scratch.accumulation
import course_lib.scratch.checkpointing
import course_lib.scratch.collectives
import course_lib.scratch.context
import course_lib.scratch.data_parallel
import course_lib.scratch.ddp
import course_lib.scratch.experts
import course_lib.scratch.flat_parameter
import course_lib.scratch.fsdp
import course_lib.scratch.gpt
import course_lib.scratch.launcher
import course_lib.scratch.opaque
import course_lib.scratch.parameter_server
import course_lib.scratch.pipeline
import course_lib.scratch.pipeline_stage
import course_lib.scratch.precision
import course_lib.scratch.recovery
import course_lib.scratch.tensor
import course_lib.scratch.three_d
import course_lib.scratch.wire
import course_lib.scratch.yafsdp
import course_lib.scratch.zero
