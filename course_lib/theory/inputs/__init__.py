"""The inputs of all other rooms: model shape, recipe, layout and cluster, combined in a `Job`."""

from course_lib.theory.inputs.hardware import Accelerator, Cluster, Link
from course_lib.theory.inputs.huggingface import read_configuration
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.shape import LatentAttention, TransformerShape

__all__ = [
    "MODELS",
    "RECIPES",
    "Accelerator",
    "Cluster",
    "Job",
    "LatentAttention",
    "Layout",
    "Link",
    "Recipe",
    "TransformerShape",
    "read_configuration",
]
