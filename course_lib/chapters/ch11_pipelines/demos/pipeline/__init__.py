"""Pipeline parallelism: program, versions, and stages that sleep."""
